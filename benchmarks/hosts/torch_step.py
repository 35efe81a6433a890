#!/usr/bin/env python3
"""One rank of measure.py's DDP and FSDP2 over gloo, started by mpirun: the model of benchmarks/step in PyTorch.

Timed as benchmarks/step --in-a-row: forward and backward alone of the same model, then steps with AdamW and clipping.
Rank 0 prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any

RANK = 4  # of PowerSGD's factors

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))


def traffic_of(interface: str) -> tuple[float, float]:
    """Bytes that an interface of this host has received and sent."""
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                fields = numbers.split()
                return float(fields[0]), float(fields[8])
    return 0.0, 0.0


def reduced_numel(model: Any, mode: str) -> int:
    """Elements that a step's all-reduces add up."""
    numel = 0
    for parameter in model.parameters():
        rows = parameter.shape[0]
        columns = parameter.numel() // rows
        factors = RANK * (rows + columns)
        compressed = mode == "powersgd4" and parameter.ndim > 1 and 2 * factors < parameter.numel()
        numel += factors if compressed else parameter.numel()
    return numel


def trainer_of(mode: str, model: Any, dtype: str) -> Any:
    """step(tokens) of one micro-batch."""
    import peers
    import torch

    if dtype == "bf16":
        return {"ddp": peers.Ddp, "fsdp2": peers.Fsdp2}[mode](model, None).step
    if mode in ("ddp", "powersgd4"):
        # PowerSGD's all-reduces of several buckets may begin in other orders on each rank, which gloo does not take.
        more: dict[str, Any] = {"bucket_cap_mb": 1000} if mode == "powersgd4" else {}
        trained = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **more)
        if mode == "powersgd4":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
            trained.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in model.h:
            fully_shard(block, mesh=mesh)
        trained = fully_shard(model, mesh=mesh)
    optimizer = peers.adamw(model.parameters())

    def step(batches: list[Any]) -> None:
        for tokens in batches:
            trained(tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), peers.CLIPPING)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("ddp", "powersgd4", "fsdp2"), required=True)
    parser.add_argument("--interface", default="eth0")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    defaults = {"layers": 8, "dim": 512, "heads": 8, "vocab": 256, "seq": 256, "batch": 4}
    for name, value in {**defaults, "steps": 3, "warmup": 1, "in-a-row": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()

    import peers
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ["LOCAL_RANK"] = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain = peers.build_model(args).to(torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    model = peers.build_model(args)
    numel = sum(parameter.numel() for parameter in model.parameters())
    step = trainer_of(args.mode, model, args.dtype)
    generator = torch.Generator().manual_seed(rank)
    tokens = [torch.randint(0, args.vocab, (args.batch, args.seq + 1), generator=generator) for _ in range(8)]
    reduced = reduced_numel(plain, args.mode)
    baseline, seconds, received, sent = [], [], [], []
    if args.mode == "powersgd4":  # it begins after two steps
        for _ in range(3):
            step([tokens[0]])
    for i in range(args.warmup + args.steps):
        dist.barrier()
        begin = time.perf_counter()
        for j in range(args.in_a_row):
            plain(tokens[j % len(tokens)]).backward()
            plain.zero_grad(set_to_none=True)
        dist.barrier()
        alone = (time.perf_counter() - begin) / args.in_a_row
        if args.in_a_row > 1:
            step([tokens[0]])
            dist.barrier()
        before = traffic_of(args.interface)
        begin = time.perf_counter()
        for j in range(args.in_a_row):
            step([tokens[j % len(tokens)]])
        dist.barrier()
        if i < args.warmup:
            continue
        seconds.append((time.perf_counter() - begin) / args.in_a_row)
        baseline.append(alone)
        after = traffic_of(args.interface)
        received.append((after[0] - before[0]) / args.in_a_row)
        sent.append((after[1] - before[1]) / args.in_a_row)
    if rank == 0:
        ratios = [mine / alone for mine, alone in zip(seconds, baseline)]
        print(
            json.dumps(
                {
                    "mode": args.mode, "parameters": numel, "reduced_numel": reduced, "ranks": ranks, "batch": args.batch, "dtype": args.dtype,
                    "step_s": statistics.median(seconds), "baseline_s": statistics.median(baseline),
                    "ratio_pairs_median": statistics.median(ratios),
                    "received_mb": statistics.median(received) / 1e6, "sent_mb": statistics.median(sent) / 1e6,
                    "torch": torch.__version__,
                }
            ),
            flush=True,
        )  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
