#!/usr/bin/env python3
"""What others take for the model of `benchmarks/step`: plain forward+backward, DDP, FSDP2 and DeepSpeed.

    python benchmarks/peers.py [--ranks 2] [--modes compute,ddp,fsdp2,zero1,zero2,zero3] [--layers 12 ...]

Needs an environment of its own with torch (CPU) and deepspeed. Starts torchrun once per mode and prints one JSON line
for each: median step time, peak PSS summed over ranks. Same architecture, batch, sequence length, dtype (bf16 with
fp32 master weights) and AdamW as the C++ benchmark; one thread per rank, each pinned to its core.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--modes", default="compute,ddp,fsdp2,zero1,zero2,zero3")
    for name, value in dict(layers=12, dim=1024, heads=16, vocab=256, seq=256, batch=2, steps=6, warmup=2).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--timeout", type=int, default=400, help="seconds per mode")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def build_model(options):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            dim = options.dim
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, length, dim = x.shape
            heads = [t.view(batch, length, options.heads, -1).transpose(1, 2)
                     for t in self.qkv(self.ln1(x)).chunk(3, dim=-1)]
            y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, dim)
            x = x + self.proj(y)
            return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(options.vocab, options.dim)
            self.wpe = nn.Embedding(options.seq, options.dim)
            self.h = nn.ModuleList(Block() for _ in range(options.layers))
            self.lnf, self.head = nn.LayerNorm(options.dim), nn.Linear(options.dim, options.vocab, bias=False)

        def forward(self, tokens):
            x = self.wte(tokens[:, :-1]) + self.wpe.weight
            for block in self.h:
                x = block(x)
            logits = self.head(self.lnf(x)).float()
            return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    torch.manual_seed(0)
    return GPT()


class Plain:
    """Forward and backward, gradients dropped: what cannot be avoided."""

    def __init__(self, model):
        import torch
        self.model = model.to(torch.bfloat16)

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        return loss


class Ddp:
    """DDP in bf16 with fp32 masters kept by hand, as its users do."""

    def __init__(self, model):
        import torch
        self.torch = torch
        self.low = list(model.to(torch.bfloat16).parameters())
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.masters = [p.detach().float().requires_grad_() for p in self.low]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, fused=True)

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        for master, low in zip(self.masters, self.low):
            master.grad = low.grad.float()
        self.torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.no_grad():
            for master, low in zip(self.masters, self.low):
                low.copy_(master)
                low.grad = None
        return loss


class Fsdp2:
    def __init__(self, model):
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in model.h:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.torch, self.model = torch, fully_shard(model, mesh=mesh, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(self, tokens):
        loss = self.model(tokens)
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


class DeepSpeed:
    def __init__(self, model, stage, options):
        with contextlib.redirect_stdout(sys.stderr):
            import deepspeed
            self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
                "train_micro_batch_size_per_gpu": options.batch, "gradient_clipping": 1.0,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": True},
                "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True,
                                      "reduce_bucket_size": 50_000_000}})

    def step(self, tokens):
        loss = self.engine(tokens)
        self.engine.backward(loss)
        self.engine.step()
        return loss


class PeakPss(threading.Thread):
    """The largest proportional set size of this process, in MB, sampled 50 times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self):
        while True:
            with open("/proc/self/smaps_rollup") as lines:
                for line in lines:
                    if line.startswith("Pss:"):
                        self.peak = max(self.peak, int(line.split()[1]) / 1024)
            time.sleep(0.02)


def worker(options):
    import torch
    import torch.distributed as dist
    mode, rank = options.worker, int(os.environ["LOCAL_RANK"])
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    if not mode.startswith("zero"):
        dist.init_process_group("gloo")
    model = build_model(options)
    count = sum(p.numel() for p in model.parameters())
    if mode.startswith("zero"):
        trainer = DeepSpeed(model, int(mode[4:]), options)
    else:
        trainer = {"compute": Plain, "ddp": Ddp, "fsdp2": Fsdp2}[mode](model)
    generator = torch.Generator().manual_seed(rank)
    batches = [torch.randint(0, options.vocab, (options.batch, options.seq + 1), generator=generator) for _ in range(8)]
    memory = PeakPss()
    memory.start()
    seconds = []
    for i in range(options.warmup + options.steps):
        dist.barrier()
        begin = time.perf_counter()
        loss = trainer.step(batches[i % len(batches)])
        dist.barrier()
        if i >= options.warmup:
            seconds.append(time.perf_counter() - begin)
    peak = torch.tensor([memory.peak])
    dist.all_reduce(peak)
    if dist.get_rank() == 0:
        print("PEER " + json.dumps({"mode": mode, "parameters": count, "ranks": dist.get_world_size(),
                                    "step_s": round(statistics.median(seconds), 4),
                                    "pss_mb_all_ranks": round(float(peak)), "loss": round(float(loss.detach()), 4)}),
              flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    options = arguments()
    if options.worker:
        return worker(options)
    compute = None
    for mode in options.modes.split(","):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}",
                   __file__, *sys.argv[1:], "--worker", mode]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        try:
            run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.timeout)
            lines = [line[5:] for line in run.stdout.splitlines() if line.startswith("PEER ")]
            error = (run.stderr.strip().splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            lines, error = [], f"no result in {options.timeout} s"
        if not lines:
            print(json.dumps({"mode": mode, "error": error}), flush=True)
            continue
        result = json.loads(lines[0])
        compute = result["step_s"] if mode == "compute" else compute
        if compute:
            result["ratio"] = round(result["step_s"] / compute, 3)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
