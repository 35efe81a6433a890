"""The programs of examples/python under zerotorch and under DeepSpeed: the same files, an import apart.

    build/peers/bin/python benchmarks/tutorial_peers.py [--ranks 1,2] [--steps 20]

Each program is run with each configuration by both libraries, every job a process per rank (gloo). Prints the losses
of the first and the last step, the largest difference between the two libraries' losses, seconds per step (median), and
the peak of all ranks' memory together (proportional set size). What a library refuses is a line with its reason.
`--dtype bf16` writes bf16 where the files say fp16, `fp32` leaves it out: DeepSpeed has no fp16 on most CPUs.
`--optimizer` adds AdamW to the configuration of the program that names none: without one DeepSpeed changes no parameter.
"""

from __future__ import annotations

import argparse
import builtins
import json
import re
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import rank_jobs

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "python"

BASE: dict[str, Any] = {"train_batch_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "zero1": {**BASE, "zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 1},
    "zero2": {**BASE, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 1},
    "zero3": {**BASE, "zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 1},
    "cpu_offload": {**BASE, "zero_optimization": {"stage": 3, "cpu_offload": True}},
    "overlap": {
        **BASE,
        "zero_optimization": {
            "stage": 3, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
            "reduce_bucket_size": 5e8,
        },
    },
}  # fmt: skip


def configuration(args: argparse.Namespace, program: str, name: str) -> dict[str, Any]:
    config = dict(CONFIGS[name])
    if args.dtype != "fp32":
        config[args.dtype] = {"enabled": True}
    if args.optimizer and program == "training_loop.py":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    if program == "with_optimizer.py" and name == "cpu_offload":
        config["zero_force_ds_cpu_optimizer"] = False
    return config


def rank_main(args: argparse.Namespace) -> None:
    """Runs the program with the library under the name that the program imports."""
    import importlib

    import torch

    torch.set_num_threads(1)
    sys.modules["zerotorch"] = importlib.import_module(args.library)
    last = time.perf_counter()

    def stamped(*values: Any, **options: Any) -> None:
        nonlocal last
        now = time.perf_counter()
        builtins.print(*values, f" seconds {now - last:.6f}", **options)
        last = now

    program = EXAMPLES / args.program
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [str(program), "--deepspeed_config", args.config, "--steps", str(args.steps)]
    runpy.run_path(str(program), init_globals={"print": stamped}, run_name="__main__")


def job(args: argparse.Namespace, library: str, program: str, name: str, ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="zerotorch-tutorial-") as folder:
        config = Path(folder) / "ds_config.json"
        config.write_text(json.dumps(configuration(args, program, name)))
        command = [
            *(sys.executable, __file__, "--library", library, "--program", program),
            *("--config", str(config), "--steps", str(args.steps)),
        ]
        try:
            ended, peak = rank_jobs.run(command, ranks, args.timeout, cwd=folder)
        except subprocess.TimeoutExpired:
            return {"why": f"not done after {args.timeout:.0f} s"}
    for one in ended:
        if one.returncode != 0:
            said = one.stderr.strip().splitlines()
            errors = [line for line in said if re.match(r"(\w+\.)*\w*(Error|Exception)\b", line)]
            return {"why": (errors or said or ["?"])[-1][:150]}
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", ended[0].stdout)]
    seconds = [float(one) for one in re.findall(r"seconds (\S+)", ended[0].stdout)]
    return {"losses": losses, "seconds": median(seconds[2:]), "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=("fp16", "bf16", "fp32"), default="fp16")
    parser.add_argument("--optimizer", action="store_true")
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument("--programs", default="training_loop.py,with_optimizer.py")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--program", help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.library:
        rank_main(args)
        return
    print(
        f"{'program':<18}{'configuration':<14}{'ranks':>5}  {'library':<11}"
        f"{'first':>8}{'last':>8}{'apart':>9}{'ms/step':>9}{'peak MB':>9}"
    )
    for program in args.programs.split(","):
        for name in args.configs.split(","):
            for ranks in map(int, args.ranks.split(",")):
                results = {one: job(args, one, program, name, ranks) for one in ("zerotorch", "deepspeed")}
                known = [result["losses"] for result in results.values() if "losses" in result]
                apart = max((abs(a - b) for a, b in zip(*known, strict=True)), default=0.0) if len(known) == 2 else None
                for library, result in results.items():
                    head = f"{program:<18}{name:<14}{ranks:>5}  {library:<11}"
                    if "why" in result:
                        print(f"{head} {result['why']}", flush=True)
                        continue
                    difference = "" if apart is None else f"{apart:.4f}"
                    print(
                        f"{head}{result['losses'][0]:>8.4f}{result['losses'][-1]:>8.4f}{difference:>9}"
                        f"{1e3 * result['seconds']:>9.1f}{result['peak'] / 1e6:>9.0f}",
                        flush=True,
                    )  # fmt: skip


if __name__ == "__main__":
    main()
