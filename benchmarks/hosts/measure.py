#!/usr/bin/env python3
"""A training step over several hosts with links of a given rate: zerotorch, DDP and FSDP2, over forward and backward alone.

    sudo .venv/bin/python benchmarks/hosts/measure.py --hosts 2 --slots 1 --rate 1gbit

Hosts are namespaces of this machine (scripts/hosts.sh). One run measures one layout at one rate and prints a table of it;
--out adds a JSON line for each case to a file. --step FOLDER/step takes another build, for comparing two in turns.
What is measured and how to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODES = "stage1-default,stage2-default,stage3-default-copying,stage3-default-shared,ddp,fsdp2"
PEERS = ("ddp", "powersgd4", "fsdp2")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(rate: str) -> float | None:
    """Of a rate as tc takes it; None for `-`."""
    for unit, bits in UNITS.items():
        if rate.endswith(unit):
            return float(rate.removesuffix(unit)) * bits
    return None


def local_steps(mode: str) -> int:
    """Of stage1-default-local64; 0: hosts are no islands."""
    found = re.search(r"-local(\d+)", mode)
    return int(found[1]) if found else 0


def theory(mode: str, numel: int, nbytes: int, hosts: int, slots: int) -> float:
    """Bytes that a host has to send in a step."""
    ranks = hosts * slots
    away = (hosts - 1) / hosts
    if steps := local_steps(mode):  # each host sends its masters and its outer values once, all ranks together
        return 2 * away * numel * 4 / steps
    if mode == "ddp":  # a ring of all ranks goes out of a host once
        return 2 * (ranks - 1) / ranks * numel * nbytes
    if mode == "fsdp2":  # three rings: two all-gathers and a reduce-scatter
        return 3 * (ranks - 1) / ranks * numel * nbytes
    # In blocks of 64: 4 or 8 bits each and a number in fp32.
    gradients = slots * away * numel * (36 / 64 if "qgradients" in mode else nbytes)
    if f"blocks{slots}" in mode:  # a sum for each host
        gradients = away * numel * 4
    fetched = mode.startswith("stage3") and ("copying" in mode or "qweights" in mode)
    shared = "shared" in mode or (mode.startswith("stage3") and not fetched)
    # Once for each host, or once or twice for each rank.
    parameters = (1 if shared else 2 * slots if fetched else slots) * away * numel * (68 / 64 if "qweights" in mode else nbytes)
    return gradients + parameters


def run(command: list[str], timeout: float, log: str) -> str:
    """Its standard output. Raises RuntimeError with what it said last."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{log}: took more than {timeout:g} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"{log}: {(done.stdout + done.stderr).strip()[-1500:]}")
    return done.stdout


def measure(args: argparse.Namespace, mode: str) -> dict[str, Any]:
    ranks = args.hosts * args.slots
    mpirun = ["mpirun", "-n", str(ranks), "--hostfile", os.environ["HOSTFILE"], "--bind-to", "none"]
    mpirun += ["-x", "OMP_NUM_THREADS=1", *args.mpirun]
    common = ["--batch", str(args.batch), "--steps", str(args.steps), "--warmup", str(args.warmup)]
    in_a_row = args.in_a_row
    if steps := local_steps(mode):  # as many exchanges in all that is timed
        in_a_row = -(-in_a_row // steps) * steps
    common += ["--in-a-row", str(in_a_row), "--interface", "eth0"]
    if mode in PEERS:
        mpirun += ["-x", "GLOO_SOCKET_IFNAME=eth0", "-x", "MASTER_ADDR=10.77.0.1", "-x", "MASTER_PORT=29555"]
        command = [sys.executable, str(HERE / "torch_step.py"), "--mode", mode, *common, "--dtype", args.dtype]
    else:
        kind = ["--fp32"] if args.dtype == "fp32" else []
        command = [args.step, "--preset", "gpt-25m", "--no-pin", "--modes", mode, *kind, *common]
    lines = run(mpirun + command, args.timeout, mode).splitlines()
    result: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    numel = result.get("reduced_numel", result["parameters"])  # PowerSGD's factors
    sent = theory("ddp" if mode.startswith("powersgd") else mode, numel, 4 if args.dtype == "fp32" else 2, args.hosts, args.slots)
    speed = bits_per_second(args.rate)
    result |= {"mode": mode, "hosts": args.hosts, "slots": args.slots, "rate": args.rate, "theory_mb": sent / 1e6}
    if speed:
        result["link_used"] = result["sent_mb"] * 8e6 / speed / result["step_s"]
    return result


def inside(args: argparse.Namespace) -> None:
    """On the first host."""
    print("| | s/step | forward+backward | ratio | MB a host sends | in theory | link used |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for mode in args.modes.split(","):
        try:
            result = measure(args, mode)
        except RuntimeError as error:
            print(f"| {mode} | failed: {error} | | | | | |", flush=True)
            continue
        used = f"{100 * result['link_used']:.0f} %" if "link_used" in result else ""
        print(
            f"| {mode} | {result['step_s']:.3f} | {result['baseline_s']:.3f} | {result['ratio_pairs_median']:.2f} "
            f"| {result['sent_mb']:.1f} | {result['theory_mb']:.1f} | {used} |",
            flush=True,
        )
        if args.out:
            with open(args.out, "a") as file:
                file.write(json.dumps({"label": args.label, **result}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="ranks on each host")
    parser.add_argument("--rate", default="1gbit", help="of each host's link, as tc takes it; - for no limit")
    parser.add_argument("--modes", default=MODES, help=f"of benchmarks/step, or {PEERS} (default: {MODES})")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 256 tokens a rank")
    parser.add_argument("--in-a-row", type=int, default=4, help="steps that are timed together")
    parser.add_argument("--steps", type=int, default=3, help="times that such steps are timed")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a case")
    parser.add_argument("--step", default=str(ROOT / "build/release/benchmarks/step"))
    parser.add_argument("--mpirun", type=shlex.split, default=[], help="more of its options, in one word")
    parser.add_argument("--label", default="", help="of the lines in --out")
    parser.add_argument("--out", help="a file that gets a JSON line for each case")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args)
    command = shlex.join([sys.executable, str(pathlib.Path(__file__).resolve()), "--inside", *sys.argv[1:]])
    done = subprocess.run(
        [str(ROOT / "scripts/hosts.sh"), str(args.hosts), args.rate, command],
        env={**os.environ, "SLOTS": str(args.slots)},
        check=False,
    )
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
