"""A step of a Hugging Face model under zerotorch, DDP, FSDP2 and DeepSpeed, on ranks of this machine.

    python benchmarks/python_peers.py [--model gpt2|smollm2|llama|FOLDER] [--ranks 2] [--steps 4] [--checkpointing] [--modes ...]

Each mode is a job of its own, all in turns (--rounds). bf16; AdamW; the same weights and data. "cpp-3" is this library's
own model in C++ (benchmarks/model_step.cpp), "zerotorch-3" transformers' under the Python package. FOLDER: its weights,
and --tokens FILE (uint32) to train them on; else the bytes of torch's Python sources. Prints the fastest step of each, the first and last loss,
the largest difference of any loss to that of the first mode, and the peak of all ranks' memory together (proportional
set size, so that shared pages count once). Needs transformers, and deepspeed for its modes.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import rank_jobs

MODES = ("cpp-3", "zerotorch-3", "zerotorch-2", "ddp", "fsdp2", "deepspeed-3", "deepspeed-2")


def build(args: argparse.Namespace) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    if args.folder:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
        for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout"):
            if hasattr(model.config, name):
                setattr(model.config, name, 0.0)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.use_cache = False
    elif args.model == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=args.layers, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False
        )
        model = transformers.GPT2LMHeadModel(config)
    elif args.model == "smollm2":
        config = transformers.LlamaConfig(
            hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
            num_key_value_heads=3, vocab_size=49152, rope_theta=100000.0, tie_word_embeddings=True, use_cache=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=768, intermediate_size=2048, num_hidden_layers=args.layers, num_attention_heads=12,
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


def ds_config(args: argparse.Namespace, stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }


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

    dist.init_process_group("gloo")
    if name == "ddp":
        wrapped: Any = torch.nn.parallel.DistributedDataParallel(model)  # fp32 weights, bf16 products
        autocast = torch.autocast("cpu", torch.bfloat16)
    else:
        import contextlib

        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.transformer.h if hasattr(model, "transformer") else model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        wrapped = fully_shard(model, mesh=mesh, mp_policy=policy)
        autocast = contextlib.nullcontext()  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-4, weight_decay=0.01)

    def step_of_torch(batch: Any) -> float:
        with autocast:
            loss = wrapped(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step_of_torch


def rank_main(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    step = trainer(args, args.mode, rank)
    seconds, losses = [], []
    for number in range(args.warmup + args.steps):
        batch = data(args, number, rank)
        begin = time.perf_counter()
        losses.append(step(batch))
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print("RESULT " + json.dumps({"seconds": min(seconds[args.warmup :]), "losses": losses}), flush=True)


def command_of(args: argparse.Namespace, mode: str, scratch: pathlib.Path) -> list[str]:
    own = ["--folder", str(args.folder), "--tokens", str(args.tokens)]
    if not mode.startswith("cpp-"):
        return [sys.executable, __file__, "--mode", mode, *sys.argv[1:], *own]
    config = scratch / "config.json"
    config.write_text(json.dumps(ds_config(args, int(mode.partition("-")[2]))))
    sizes = [f"--{name}={getattr(args, name)}" for name in ("seq", "batch", "steps", "warmup")]
    again = f"--recompute={int(args.checkpointing)}"
    return [args.cpp, str(args.folder), str(args.tokens), f"--config={config}", *sizes, again]


def prepare(args: argparse.Namespace, scratch: pathlib.Path) -> None:
    """A folder with the weights, and a file of tokens, that all modes read."""
    import numpy

    if pathlib.Path(args.model).is_dir():
        args.folder = pathlib.Path(args.model)
    else:
        model = build(args)
        args.folder = scratch / "model"
        model.save_pretrained(args.folder)
    if args.tokens is None:
        import torch

        args.tokens = scratch / "tokens.bin"
        files = sorted(pathlib.Path(torch.__file__).parent.joinpath("nn", "modules").glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)
        numel = (args.warmup + args.steps) * args.ranks * args.batch * args.seq
        numpy.resize(numpy.frombuffer(text, dtype=numpy.uint8), numel).astype("<u4").tofile(args.tokens)


def job(args: argparse.Namespace, mode: str, scratch: pathlib.Path) -> dict[str, Any]:
    ended, peak = rank_jobs.run(command_of(args, mode, scratch), args.ranks, args.timeout)
    for one in ended:
        if one.returncode != 0:
            return {"failed": 1.0, "why": one.stderr.strip().splitlines()[-1][:200]}
    line = next(line for line in ended[0].stdout.splitlines() if line.startswith("RESULT "))
    return {**json.loads(line[7:]), "peak": float(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="gpt2, smollm2, llama, or a folder of Hugging Face's")
    parser.add_argument("--tokens", type=pathlib.Path, help="a file of uint32 (default: bytes of text)")
    parser.add_argument("--cpp", default="build/release/benchmarks/model_step")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--mode", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.mode:
        rank_main(args)
        return
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in args.modes.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        prepare(args, pathlib.Path(folder))
        for _ in range(args.rounds):
            for mode in results:
                results[mode].append(job(args, mode, pathlib.Path(folder)))
    print(f"{'mode':<14}{'s/step':>9}{'peak GB':>9}{'first loss':>12}{'last loss':>11}{'difference':>12}")
    curve: list[float] = next((runs[0]["losses"] for runs in results.values() if "losses" in runs[0]), [])
    for mode, runs in results.items():
        if any("failed" in one for one in runs):
            print(f"{mode:<14}  failed: {next(one['why'] for one in runs if 'failed' in one)}")
            continue
        seconds, peak, losses = min(one["seconds"] for one in runs), max(one["peak"] for one in runs), runs[-1]["losses"]
        apart = max(abs(a - b) for a, b in zip(losses, curve, strict=True))
        print(
            f"{mode:<14}{seconds:>9.2f}{peak / 1e9:>9.2f}{losses[0]:>12.4f}{losses[-1]:>11.4f}{apart:>12.4f}", flush=True
        )


if __name__ == "__main__":
    main()
