"""What the engine costs a Python program, where the model is too small to hide it, beside the C++ program.

    python benchmarks/python_overhead.py [--ranks 1,2] [--stages 0,3] [--steps 400] [--cpp build/release/benchmarks/overhead]

The cases of benchmarks/overhead.cpp in Python: a model of 1M parameters, on each rank in turns, 25 steps at a time:
forward and backward alone, gradients dropped ("bare"); the loop of a user without this library, torch's AdamW (one
rank); the engine. On one rank also operators with a parameter, with and without the engine. Prints medians, and those
of the C++ program where it is built. Microseconds of steps, nanoseconds of operators.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import rank_jobs

LAYERS, WIDTH, BATCH = 4, 512, 8
BLOCK, SETTLE = 25, 5
SMALL, CALLS, ROUNDS = 16, 20_000, 15

Table = dict[tuple[Any, ...], dict[str, float]]


def make_model(layers: int, width: int) -> Any:
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter((torch.rand(width, width) * 2 - 1) * (6.0 / width) ** 0.5)

        def forward(self, x: Any) -> Any:
            return torch.relu(torch.nn.functional.linear(x, self.weight))

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x.square().mean().float()

    torch.manual_seed(1)
    return Mlp()


def ds_config(stage: int, bf16: bool, ranks: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "gradient_clipping": 0.0,
        "bf16": {"enabled": bf16, "check_grad_overflow": False},
        "zero_optimization": {"stage": stage, "overlap_comm": True, "stage3_param_persistence_threshold": 0},
    }


def measure_step(stage: int, bf16: bool, rank: int, ranks: int, steps: int) -> dict[str, Any]:
    import torch

    import zerotorch
    from zerotorch.distributed import world_group

    dtype = torch.bfloat16 if bf16 else torch.float32
    torch.manual_seed(7)
    x = torch.randn(BATCH, WIDTH).to(dtype)
    bare, plain, model = make_model(LAYERS, WIDTH).to(dtype), make_model(LAYERS, WIDTH).to(dtype), make_model(LAYERS, WIDTH)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, weight_decay=0.01)
    engine = zerotorch.initialize(model=model, config=ds_config(stage, bf16, ranks))[0]

    def bare_step() -> None:
        loss = bare(x)
        loss.backward()
        for parameter in bare.parameters():
            parameter.grad = None
        loss.item()

    def plain_step() -> None:
        loss = plain(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    def engine_step() -> None:
        loss = engine(x)
        engine.backward(loss)
        engine.step()
        loss.item()

    loops: dict[str, Callable[[], None]] = {"bare": bare_step, "engine": engine_step}
    if ranks == 1:
        loops["torch"] = plain_step

    def timed(step: Callable[[], None]) -> float:
        world_group().barrier()
        begin = time.perf_counter()
        step()
        world_group().barrier()
        return time.perf_counter() - begin

    times: dict[str, list[float]] = {name: [] for name in loops}
    names = list(loops)
    for block in range((steps + BLOCK - 1) // BLOCK):
        for k in range(len(names)):
            name = names[(block + k) % len(names)]
            for _ in range(SETTLE):
                timed(loops[name])
            times[name] += [timed(loops[name]) for _ in range(BLOCK)]
    result: dict[str, Any] = {"ranks": ranks, "stage": stage, "dtype": "bf16" if bf16 else "fp32"}
    for name, values in times.items():
        result[f"{name}_us"] = statistics.median(values) * 1e6
    engine.destroy()
    return result


def measure_operators() -> list[dict[str, Any]]:
    import torch

    import zerotorch

    model = make_model(1, SMALL)
    parameter = model.layers[0].weight
    plain = parameter.detach().clone().requires_grad_()
    x = torch.randn(SMALL, SMALL)
    operators: dict[str, Callable[[Any], Any]] = {
        "add": lambda w: torch.add(w, x),
        "linear": lambda w: torch.nn.functional.linear(x, w),
        "t (a view)": lambda w: w.t(),
    }

    def ns_per_call(call: Callable[[Any], Any], w: Any) -> float:
        begin = time.perf_counter()
        for _ in range(CALLS):
            call(w)
        return (time.perf_counter() - begin) / CALLS * 1e9

    engine = zerotorch.initialize(model=model, config=ds_config(3, False, 1))[0]
    result = []
    for name, call in operators.items():
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                turns = [(ns_per_call(call, parameter), ns_per_call(call, plain)) for _ in range(ROUNDS)]
            result.append(
                {
                    "operator": name,
                    "grad": grad,
                    "parameter_ns": statistics.median(t[0] for t in turns),
                    "plain_ns": statistics.median(t[1] for t in turns),
                }
            )
    engine.destroy()
    return result


def rank_main(args: argparse.Namespace) -> None:
    import torch

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    import zerotorch

    zerotorch.init_distributed()
    lines = [
        measure_step(stage, bf16, rank, ranks, args.steps) for bf16 in (False, True) for stage in numbers(args.stages)
    ]
    if ranks == 1:
        lines += measure_operators()
    if rank == 0:
        for line in lines:
            print("RESULT " + json.dumps(line), flush=True)


def numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def of_python(args: argparse.Namespace, ranks: int) -> list[dict[str, Any]]:
    ended, _ = rank_jobs.run([sys.executable, __file__, "--rank", *sys.argv[1:]], ranks, args.timeout)
    for one in ended:
        if one.returncode != 0:
            sys.exit(f"python_overhead: a rank of {ranks} ended with {one.returncode}:\n{one.stderr.strip()}")
    return [json.loads(line[7:]) for line in ended[0].stdout.splitlines() if line.startswith("RESULT ")]


def of_cpp(args: argparse.Namespace) -> list[dict[str, Any]]:
    if not pathlib.Path(args.cpp).is_file():
        print(f"(no {args.cpp}: Python alone)")
        return []
    command = [args.cpp, "--ranks", args.ranks, "--stages", args.stages, "--steps", str(args.steps)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=args.timeout).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--stages", default="0,3")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--cpp", default="build/release/benchmarks/overhead")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args)
        return
    cpp = of_cpp(args)
    steps: Table = {
        (one["ranks"], one["stage"], one["dtype"]): one
        for one in cpp
        if one["case"] == "step" and one["store"] in ("auto", "node_shared")
    }
    operators: Table = {(one["operator"], one["grad_mode"]): one for one in cpp if one["case"] == "operator"}
    lines = [line for ranks in numbers(args.ranks) for line in of_python(args, ranks)]
    print(f"{'step, us':<24}{'bare':>8}{'torch':>8}{'engine':>8}{'over bare':>11}   C++:{'bare':>7}{'engine':>8}{'over bare':>11}")
    for line in (line for line in lines if "stage" in line):
        title = f"{line['ranks']} ranks, ZeRO-{line['stage']}, {line['dtype']}"
        text = f"{title:<24}{line['bare_us']:>8.0f}{line.get('torch_us', float('nan')):>8.0f}{line['engine_us']:>8.0f}"
        text += f"{line['engine_us'] - line['bare_us']:>11.0f}"
        beside = steps.get((line["ranks"], line["stage"], line["dtype"]))
        if beside:
            text += f"{beside['bare_us']:>14.0f}{beside['engine_us']:>8.0f}{beside['over_bare_us']:>11.0f}"
        print(text)
    print(f"\n{'operator, ns':<24}{'plain':>8}{'engine':>16}{'over':>11}   C++:{'plain':>7}{'engine':>8}{'over':>11}")
    for line in (line for line in lines if "operator" in line):
        title = f"{line['operator']}, grad {'on' if line['grad'] else 'off'}"
        over = line["parameter_ns"] - line["plain_ns"]
        text = f"{title:<24}{line['plain_ns']:>8.0f}{line['parameter_ns']:>16.0f}{over:>11.0f}"
        other = operators.get((line["operator"], line["grad"]))
        if other:
            text += f"{other['with_engine_other_ns']:>14.0f}{other['with_engine_parameter_ns']:>8.0f}"
            text += f"{other['interception_ns']:>11.0f}"
        print(text)


if __name__ == "__main__":
    main()
