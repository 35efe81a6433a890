"""A step with offload to NVMe beside what the disk and the processor give, in one run.

    python benchmarks/offload.py FOLDER [--preset gpt-1b] [--ranks 2] [--steps 4] [--seq 128] [--rounds 2]

FOLDER is on the disk. Goes through the tiers in rounds: everything in memory, states on NVMe, sums of gradients there as
well, parameters there as well, all three. Between them `zero bench io` measures the disk, read and written at once. Prints of each tier: seconds a step, bytes that its ranks read and write, and two
limits, with the share of them that was reached: the step in memory and these bytes at the disk's mixed rate at the same
time, and one after the other, as it has to be where the gradient is clipped: the first update waits for the last
gradient. Speculative updates begin in backward, and need steps that are not clipped (--clipping). Two more tiers are
another training: updated within backward, where nothing is clipped, and delayed, where the update of a step runs while
the next one computes. The fastest step after the first, and what a step moves then. Losses
must be the same bits (but those of the last two).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIERS: dict[str, list[str]] = {
    "in memory": [],
    "states": ["--nvme"],
    "states, gradients": ["--nvme", "--nvme-gradients"],
    "states, parameters": ["--nvme", "--nvme-parameters"],
    "all three": ["--nvme", "--nvme-gradients", "--nvme-parameters"],
    "states, in backward": ["--nvme"],
    "states, speculative": ["--nvme"],
    "states, delayed": ["--nvme"],
}
IN_BACKWARD, DELAYED = "states, in backward", "states, delayed"
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95]}},
    "zero_optimization": {"stage": 3},
}


def run(command: list[str], timeout: float) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def measure_disk(args: argparse.Namespace) -> float:
    """Bytes a second, read and written together, in the best blocks and queues."""
    command = [args.zero, "bench", "io", args.folder, "-n", str(args.ranks), "--seconds", "1", "--json"]
    found = json.loads(run(command, 900))
    return max(row["mixed_read"] + row["mixed_write"] for row in found["rows"])


def train(args: argparse.Namespace, tier: str, scratch: pathlib.Path, number: int) -> dict[str, Any]:
    options = [part for option in TIERS[tier] for part in ([option, args.folder] if option == "--nvme" else [option])]
    folder = scratch / f"run{number}"
    command = [args.zero, "train", "--preset", args.preset, "--seq", str(args.seq), "-n", str(args.ranks)]
    config: dict[str, Any] = CONFIG | {"gradient_clipping": args.clipping}
    if tier == IN_BACKWARD:
        config |= {"gradient_clipping": 0, "bf16": {"enabled": True, "check_grad_overflow": False}}
        config["zerotorch"] = {"update": "in_backward"}
    if tier == "states, speculative":
        config["zerotorch"] = {"update": "speculative"}
    if tier == DELAYED:
        config["zerotorch"] = {"update": "delayed"}
    (scratch / "config.json").write_text(json.dumps(config))
    command += ["--steps", str(args.steps), "--config", str(scratch / "config.json"), "--run-dir", str(folder), "--json"]
    command += ["--eval-batches", "1", "--eval-every", "0", "--sample-length", "0", "--force", *options]
    summary = json.loads(run(command, args.timeout))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    summary["losses"] = [line["loss"] for line in lines]
    summary["seconds"] = min(after["seconds"] - before["seconds"] for before, after in zip(lines, lines[1:], strict=False))
    shutil.rmtree(folder)
    return dict(summary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--preset", default="gpt-1b")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clipping", type=float, default=1.0, help="bound of the gradient's norm")
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=list(TIERS))
    parser.add_argument("--zero", default=str(ROOT / "build/release/apps/zero/zero"))
    args = parser.parse_args()
    if not pathlib.Path(args.zero).is_file():
        sys.exit(f"{args.zero} is not built (make build), or give it by --zero")
    pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
    best: dict[str, dict[str, Any]] = {}
    disks = [measure_disk(args)]
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        scratch = pathlib.Path(name)
        for round_number in range(args.rounds):
            for number, tier in enumerate(args.tiers):
                one = train(args, tier, scratch, number)
                if tier not in (IN_BACKWARD, DELAYED) and one["losses"] != best.setdefault(args.tiers[0], one)["losses"]:
                    sys.exit(f"{tier}: other losses than {args.tiers[0]}: {one['losses']}")
                if one["seconds"] <= best.setdefault(tier, one)["seconds"]:
                    best[tier] = one
                print(f"round {round_number}, {tier}: {one['seconds']:.2f} s", flush=True)
            disks.append(measure_disk(args))
    mixed = max(disks)
    print(f"\ndisk, read and written at once by {args.ranks} ranks: {mixed / 1e9:.2f} GB/s")
    print(f"{args.preset}, {args.seq} tokens a rank, AdamW, bf16, {args.ranks} ranks; the same losses in all tiers\n")
    row = "{:<21}{:>8}{:>9}{:>9}{:>10}{:>9}{:>9}{:>9}{:>8}"
    print(row.format("", "s/step", "read GB", "written", "at once s", "reached", "in turn", "reached", "PSS GB"))
    alone = best[args.tiers[0]]["seconds"]
    for tier in args.tiers:
        one = best[tier]
        seconds = one["seconds"]
        read, written = (args.ranks * one["disk"][f"{which}_nbytes_per_step"] for which in ("read", "written"))
        disk = (read + written) / mixed
        at_once, in_turn = max(alone, disk), alone + disk
        print(row.format(tier, f"{seconds:.2f}", f"{read / 1e9:.2f}", f"{written / 1e9:.2f}", f"{at_once:.2f}",
                         f"{at_once / seconds:.2f}", f"{in_turn:.2f}", f"{in_turn / seconds:.2f}",
                         f"{one['memory']['host_pss_nbytes'] / 1e9:.2f}"))  # fmt: skip


if __name__ == "__main__":
    main()
