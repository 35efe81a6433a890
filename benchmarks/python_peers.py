"""A step of a Hugging Face model under zerotorch, DDP, FSDP2 and DeepSpeed, on ranks of this machine.

    python benchmarks/python_peers.py [--model gpt2|gpt-152m|gpt-1b|smollm2|llama|FOLDER] [--ranks 2] [--steps 4]
                                      [--checkpointing] [--modes ...] [--offload none|cpu|nvme] [--nvme FOLDER]
                                      [--device cpu|cuda] [--dtype bf16|fp16|fp32]

Each mode is a job of its own, all in turns (--rounds). AdamW; the same weights (rounded to bf16) and data. bf16 by
default; DDP computes in the 16-bit dtype by autocast, and fp16 has a GradScaler there and under FSDP2.
"cpp-3" is this library's own model in C++ (benchmarks/model_step.cpp), "zerotorch-3" transformers' under the Python
package. gpt-152m and gpt-1b have the shapes of `zero train --preset`. FOLDER: its weights, and --tokens FILE (uint32)
to train them on; else the bytes of torch's Python sources. Prints the fastest step of each and the median, the peak
of all ranks' memory together (proportional set size: shared pages count once, the page cache does not) in all and
since the timed steps began, the first and last loss, and the largest difference of any loss to that of the first
mode.

--offload: optimizer states, and with --offload-parameters at stage 3 the parameters, are in the host's memory or in
files in --nvme (default: where this runs); for the modes of zerotorch and DeepSpeed. Also prints what a step read and
wrote, of all ranks. DeepSpeed then uses its own Adam, which it compiles at first use, as its NVMe operator, which
also needs libaio-dev; NVMe it has at stage 3 alone (at stage 2 states stay in memory, and nothing is read or
written).

--device cuda: on GPUs, ranks beyond their number share them under zerotorch, which DDP, FSDP2 and DeepSpeed refuse;
also prints the memory of the GPU in use at the end, with what its allocator keeps.

Needs transformers, and deepspeed for its modes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import rank_jobs

MODES = ("cpp-3", "zerotorch-3", "zerotorch-2", "ddp", "fsdp2", "deepspeed-3", "deepspeed-2")
PRESETS = {"gpt-152m": (12, 1024, 16), "gpt-1b": (20, 2048, 16)}  # as lm/models/presets.cpp: layers, width, heads


def build(args: argparse.Namespace) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    if args.folder:
        # An engine's needs no more than bf16, where that is what the file has: see prepare().
        rounded = args.mode.startswith(("zerotorch", "deepspeed")) and not pathlib.Path(args.model).is_dir()
        dtype = torch.bfloat16 if rounded and args.dtype == "bf16" else torch.float32
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=dtype)
        for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
            if hasattr(model.config, name):
                setattr(model.config, name, 0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.use_cache = False
    elif args.model == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=args.layers or 12, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config)
    elif args.model in PRESETS:
        layers, width, heads = PRESETS[args.model]
        config = transformers.GPT2Config(
            vocab_size=256, n_positions=max(256, args.seq), n_embd=width, n_layer=args.layers or layers, n_head=heads,
            tie_word_embeddings=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    elif args.model == "smollm2":
        config = transformers.LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, vocab_size=49152, rope_theta=100000.0, tie_word_embeddings=True, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=768, intermediate_size=2048, num_hidden_layers=args.layers or 12, num_attention_heads=12,
            num_key_value_heads=4, vocab_size=32000, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def data(args: argparse.Namespace, step: int, rank: int) -> Any:
    import numpy
    import torch

    numel = args.batch * args.seq
    first = (step * args.ranks + rank) * numel
    tokens = numpy.fromfile(args.tokens, dtype="<u4", count=numel, offset=first * 4)
    return torch.from_numpy(tokens.astype(numpy.int64)).view(args.batch, args.seq)


def merged(config: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    sections = {name: merged(config.get(name, {}), value) for name, value in keys.items() if isinstance(value, dict)}
    return {**config, **keys, **sections}


def ds_config(args: argparse.Namespace, stage: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage}
    if args.offload != "none":
        where: dict[str, Any] = {"device": args.offload, "pin_memory": False}
        if args.offload == "nvme":
            where["nvme_path"] = str(args.nvme)
            zero["sub_group_size"] = args.sub_group
        zero["offload_optimizer"] = where
        if args.offload_parameters and stage == 3:
            # Else a small model stays in memory whole, and DeepSpeed's buffers take 1 GB a rank.
            zero["offload_param"] = {**where, "buffer_size": args.sub_group, "max_in_cpu": 0}
            zero |= {"stage3_max_live_parameters": 100_000_000, "stage3_max_reuse_distance": 0}
    # torch's AdamW, but with offload, where DeepSpeed wants its own.
    adam = {"lr": 1e-4, "weight_decay": 0.01, "torch_adam": args.offload == "none"}
    config = {
        "train_micro_batch_size_per_gpu": args.batch,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": adam},
        "zero_optimization": zero,
    }
    if args.dtype != "fp32":
        config[args.dtype] = {"enabled": True}
    return merged(config, args.keys)


def device_of(args: argparse.Namespace, rank: int) -> Any:
    import torch

    if args.device == "cpu":
        return torch.device("cpu")
    device = torch.device(args.device, rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def trainer(args: argparse.Namespace, mode: str, rank: int) -> Any:
    """A function of a batch that makes a step and returns its loss."""
    import torch

    model = build(args)
    name, _, stage = mode.partition("-")
    if name in ("zerotorch", "deepspeed"):
        import importlib

        engine = importlib.import_module(name).initialize(
            model=model, model_parameters=model.parameters(), config=ds_config(args, int(stage))
        )[0]

        def step_of_engine(batch: Any) -> float:
            loss = engine(input_ids=batch, labels=batch).loss
            engine.backward(loss)
            engine.step()
            return float(loss.item())

        return step_of_engine
    import torch.distributed as dist

    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    model = model.to(device_of(args, rank))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    autocast: Any = contextlib.nullcontext()
    if name == "ddp":
        wrapped: Any = torch.nn.parallel.DistributedDataParallel(model)  # fp32 weights, 16-bit products
        autocast = torch.autocast(args.device, dtype, enabled=args.dtype != "fp32")
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(args.device, (dist.get_world_size(),))
        for layer in model.transformer.h if hasattr(model, "transformer") else model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        wrapped = fully_shard(model, mesh=mesh, mp_policy=policy)
    fused = {"fused": True} if args.device == "cuda" else {}
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, weight_decay=0.01, **fused)
    scaler = torch.amp.GradScaler(args.device, enabled=args.dtype == "fp16")

    def step_of_torch(batch: Any) -> float:
        with autocast:
            loss = wrapped(input_ids=batch, labels=batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return float(loss.item())

    return step_of_torch


def moved() -> tuple[int, int]:
    """Bytes that this process has read from disks and written to them."""
    with open("/proc/self/io") as file:
        counts = dict(line.split(": ") for line in file.read().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def rank_main(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1 if args.device == "cpu" else max(1, (os.cpu_count() or 1) // args.ranks))
    rank = int(os.environ["RANK"])
    device = device_of(args, rank)
    step = trainer(args, args.mode, rank)
    seconds, losses = [], []
    began, before = time.monotonic(), moved()
    for number in range(args.warmup + args.steps):
        if number == args.warmup:
            began, before = time.monotonic(), moved()
        batch = data(args, number, rank).to(device)
        begin = time.perf_counter()
        losses.append(step(batch))
        seconds.append(time.perf_counter() - begin)
    read, written = ((now - then) / args.steps for then, now in zip(before, moved(), strict=True))
    timed = seconds[args.warmup :]
    result = {"seconds": min(timed), "median": statistics.median(timed), "losses": losses, "began": began}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        result["gpu"] = total - free
    print("RESULT " + json.dumps({**result, "read": read, "written": written}), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads may still run when the process ends


def command_of(args: argparse.Namespace, mode: str, scratch: pathlib.Path) -> list[str]:
    own = ["--folder", str(args.folder), "--tokens", str(args.tokens)]
    if args.offload == "nvme":
        own += ["--nvme", str(args.nvme)]
    if not mode.startswith("cpp-"):
        return [sys.executable, __file__, "--mode", mode, *sys.argv[1:], *own]
    config = scratch / "config.json"
    config.write_text(json.dumps(ds_config(args, int(mode.partition("-")[2]))))
    sizes = [f"--{name}={getattr(args, name)}" for name in ("seq", "batch", "steps", "warmup")]
    again = f"--recompute={int(args.checkpointing)}"
    return [args.cpp, str(args.folder), str(args.tokens), f"--config={config}", *sizes, again]


def prepare(args: argparse.Namespace, scratch: pathlib.Path) -> None:
    """A folder with the weights, and a file of tokens, that all modes read. Says what is trained."""
    import numpy

    if pathlib.Path(args.model).is_dir():
        import torch
        import transformers

        args.folder = pathlib.Path(args.model)
        with torch.device("meta"):
            model: Any = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.from_pretrained(args.folder)
            )
    else:
        model = build(args)
        args.folder = scratch / "model"
        model.bfloat16().save_pretrained(args.folder)  # DeepSpeed's masters begin with rounded weights: so that all do
    print(
        f"{args.model}: {model.num_parameters():,} parameters, {args.ranks} ranks, {args.batch} x {args.seq} tokens a "
        f"rank, offload {args.offload}{', parameters too' if args.offload_parameters else ''}",
        flush=True,
    )
    if args.tokens is None:
        import torch

        args.tokens = scratch / "tokens.bin"
        files = sorted(pathlib.Path(torch.__file__).parent.joinpath("nn", "modules").glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)
        numel = (args.warmup + args.steps) * args.ranks * args.batch * args.seq
        numpy.resize(numpy.frombuffer(text, dtype=numpy.uint8), numel).astype("<u4").tofile(args.tokens)


def job(args: argparse.Namespace, mode: str, scratch: pathlib.Path) -> dict[str, Any]:
    samples: list[tuple[float, int]] = []
    folder = tempfile.TemporaryDirectory(prefix="python-peers-", dir=args.parent) if args.offload == "nvme" else None
    with folder or contextlib.nullcontext() as args.nvme:  # of each job, since DeepSpeed's files stay
        try:
            ended, peak = rank_jobs.run(
                command_of(args, mode, scratch), args.ranks, args.timeout, samples=samples, accelerator=args.device
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no result in {args.timeout:.0f} s"}
    for one in ended:
        if one.returncode != 0:
            lines = one.stderr.strip().splitlines() or ["no message"]
            # Not what ends a trace besides: torch's advice, a later error of a destructor.
            errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?\w[\w.]*(Error|Exception)\b", line)]
            return {"failed": f"exit status {one.returncode}: {(errors[0] if errors else lines[-1])[:300]}"}
    results = [json.loads(line[7:]) for one in ended for line in one.stdout.splitlines() if line.startswith("RESULT ")]
    result = {**results[0], "peak": peak}
    if "began" in result:
        result["training"] = max((pss for when, pss in samples if when >= result["began"]), default=None)
        for name in ("read", "written"):
            result[name] = sum(one[name] for one in results)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="one of those above, or a folder of Hugging Face's")
    parser.add_argument("--tokens", type=pathlib.Path, help="a file of uint32 (default: bytes of text)")
    parser.add_argument("--cpp", default="build/release/benchmarks/model_step")
    parser.add_argument("--layers", type=int, help="other than the model's (gpt2, llama: 12)")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp32"), default="bf16")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--offload", choices=("none", "cpu", "nvme"), default="none")
    parser.add_argument("--offload-parameters", action="store_true", help="with --offload, at stage 3")
    parser.add_argument("--nvme", type=pathlib.Path, help="a folder on a local disk (default: the working directory)")
    parser.add_argument("--sub-group", type=int, default=20_000_000, help="sub_group_size with --offload nvme")
    parser.add_argument("--keys", type=json.loads, default={}, help="JSON: more of the engines' configuration")
    parser.add_argument("--modes", help=f"default {','.join(MODES)}; with --offload those of an engine")
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode:
        rank_main(args)
        return
    engines = [mode for mode in MODES if mode not in ("ddp", "fsdp2")]
    modes = args.modes.split(",") if args.modes else list(MODES) if args.offload == "none" else engines
    if args.device == "cuda" and "cpp-3" in modes:
        if args.modes:
            parser.error("--device cuda: cpp-3 is a model on the CPU")
        modes.remove("cpp-3")
    if args.offload != "none" and (without := {"ddp", "fsdp2"}.intersection(modes)):
        parser.error(f"--offload: {', '.join(sorted(without))} has none here")
    args.parent = args.nvme or pathlib.Path.cwd()
    args.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that ranks end and folders go
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as folder:
        prepare(args, pathlib.Path(folder))
        for _ in range(args.rounds):
            for mode, runs in results.items():
                runs.append(job(args, mode, pathlib.Path(folder)))
    print(
        f"{'mode':<14}{'s/step':>9}{'median':>9}{'peak GB':>9}{'training':>9}{'first loss':>12}{'last loss':>11}"
        f"{'difference':>12}{'GB read':>9}{'written':>9}{'GPU GB':>9}"
    )
    curve: list[float] = next((runs[0]["losses"] for runs in results.values() if "losses" in runs[0]), [])
    for mode, runs in results.items():
        if any("failed" in one for one in runs):
            print(f"{mode:<14}  failed: {next(one['failed'] for one in runs if 'failed' in one)}")
            continue
        losses = runs[-1]["losses"]
        apart = max(abs(a - b) for a, b in zip(losses, curve, strict=True))

        def column(name: str, pick: Callable[[list[float]], float], unit: float, runs: Any = runs) -> str:
            values = [one[name] for one in runs if one.get(name) is not None]
            return f"{pick(values) / unit:>9.3f}" if values else f"{'-':>9}"

        print(
            f"{mode:<14}{column('seconds', min, 1)}{column('median', statistics.median, 1)}{column('peak', max, 1e9)}"
            f"{column('training', max, 1e9)}{losses[0]:>12.4f}{losses[-1]:>11.4f}{apart:>12.4f}"
            f"{column('read', max, 1e9)}{column('written', max, 1e9)}{column('gpu', max, 1e9)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
