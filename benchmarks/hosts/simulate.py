#!/usr/bin/env python3
"""Steps over hosts with links of a given rate, measured and simulated.

    sudo .venv/bin/python benchmarks/hosts/simulate.py --hosts 2 --slots 1

For each rate and mode a step is measured as by measure.py, alternating with the same model alone, and `zero plan --cluster`
simulates it with links of that rate and with that time of the model alone. Two numbers come from the cells of the first
rate: how fast memory is for updates, and what a core moves of messages, so that these cells together take the time that
was measured. How to read it: README.md in this folder.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from measure import bits_per_second

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RATES = "10gbit,1gbit,100mbit"
MODES = "stage1-default,stage2-default,stage3-default-copying,stage3-default-shared"
PAYLOAD = 1448 / 1514  # of an Ethernet frame, the bytes that TCP carries


def nbytes_per_second(rate: str) -> float:
    bits = bits_per_second(rate)
    if bits is None:
        raise SystemExit(f"simulate.py: --rates: got '{rate}', want rates such as 1gbit")
    return bits / 8 * PAYLOAD


def measure(args: argparse.Namespace, rate: str, modes: list[str]) -> dict[str, dict[str, Any]]:
    """By mode."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl", dir=ROOT / "build") as out:
        command = [sys.executable, str(HERE / "measure.py"), "--hosts", str(args.hosts), "--slots", str(args.slots)]
        command += ["--rate", rate, "--modes", ",".join(modes), "--steps", str(args.steps), "--in-a-row", "2"]
        command += ["--step", args.step, "--batch", str(args.batch), "--out", out.name, "--timeout", "600"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in pathlib.Path(out.name).read_text().splitlines()]
    return {line["mode"]: line for line in lines}


class Simulator:
    """`zero plan` of what benchmarks/step runs."""

    def __init__(self, args: argparse.Namespace, folder: pathlib.Path) -> None:
        self.args, self.folder = args, folder
        self.cluster: dict[str, Any] = {
            "nodes": args.hosts,
            "ranks_per_node": args.slots,
            "node": {"latency": args.latency},
            "cpu": {"flops": 1e12, "shared_memory": args.shared_memory},
        }
        self.flops = self.plan(MODES.split(",")[0])["flops"]

    def plan(self, mode: str) -> dict[str, Any]:
        stage = int(mode[5])
        store = "copying" if stage < 3 or "copying" in mode else "node_shared"
        config = {
            "train_micro_batch_size_per_gpu": self.args.batch,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "stage3_max_reuse_distance": 0},
            "zerotorch": {"store": store},
        }
        (self.folder / "ds.json").write_text(json.dumps(config))
        (self.folder / "cluster.json").write_text(json.dumps(self.cluster))
        command = [self.args.zero, "plan", "--preset", "gpt-25m", "--dtype", "fp32", "--stages", str(stage), "--json"]
        command += ["--config", str(self.folder / "ds.json"), "--cluster", str(self.folder / "cluster.json")]
        stage_of: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["stages"][0]
        return stage_of

    def step(self, mode: str, rate: str, alone: float) -> dict[str, Any]:
        """`alone`: seconds of forward and backward by themselves."""
        self.cluster["node"]["network"] = f"{nbytes_per_second(rate) / 1e9:.9f}GB/s"
        self.cluster["cpu"]["flops"] = self.flops / alone
        simulated: dict[str, Any] = self.plan(mode)["simulated"]
        return simulated

    def calibrate(self, rate: str, cells: dict[str, dict[str, Any]]) -> None:
        """Memory's speed from the time of updates, a core's from what else the steps took."""
        update = statistics.median(cell["ms"]["update"] for cell in cells.values()) / 1e3
        updated = self.plan(next(iter(cells)))["traffic"]["host_update_nbytes"] * self.args.slots
        self.cluster["node"]["memory_bandwidth"] = f"{updated / update / 1e9:.9f}GB/s"
        wanted = sum(cell["step_s"] for cell in cells.values())
        slowest, fastest = 1e8, 1e11
        while fastest / slowest > 1.01:
            middle = (slowest * fastest) ** 0.5
            self.cluster["cpu"]["moves"] = f"{middle / 1e9:.9f}GB/s"
            simulated = (self.step(mode, rate, cell["baseline_s"])["seconds"] for mode, cell in cells.items())
            if sum(simulated) > wanted:
                slowest = middle
            else:
                fastest = middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="ranks on each host")
    parser.add_argument("--rates", default=RATES, help=f"of each host's link, as tc takes them (default: {RATES})")
    parser.add_argument("--modes", default=MODES, help=f"of benchmarks/step (default: {MODES})")
    parser.add_argument("--batch", type=int, default=4, help="sequences of 256 tokens a rank")
    parser.add_argument("--steps", type=int, default=2, help="times that two steps are timed")
    parser.add_argument("--latency", default="100us", help="between hosts, one way")
    parser.add_argument("--shared-memory", default="4GB/s", help="between ranks of a host")
    parser.add_argument("--memory-bandwidth", help="with --moves: of a run before, nothing is calibrated then")
    parser.add_argument("--moves", help="what a core moves of messages, such as 2GB/s")
    parser.add_argument("--step", default=str(ROOT / "build/release/benchmarks/step"))
    parser.add_argument("--zero", default=str(ROOT / "build/release/apps/zero/zero"))
    parser.add_argument("--out", help="a file that gets a JSON line for each cell")
    args = parser.parse_args()
    modes = args.modes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(args, pathlib.Path(folder))
        calibrated = bool(args.moves and args.memory_bandwidth)
        if calibrated:
            simulator.cluster["node"]["memory_bandwidth"] = args.memory_bandwidth
            simulator.cluster["cpu"]["moves"] = args.moves
        print("| rate | mode | model alone, s | measured, s | simulated, s | | waits, s | link used |")
        print("|---|---|---:|---:|---:|---:|---:|---:|", flush=True)
        for rate in args.rates.split(","):
            cells = measure(args, rate, modes)
            if not calibrated:
                simulator.calibrate(rate, cells)
                calibrated = True
            for mode, measured in cells.items():
                found = simulator.step(mode, rate, measured["baseline_s"])
                waits = found["waits_for_parameters"] + found["waits_for_gradients"] + found["waits_for_ranks"]
                off = f"{100 * (found['seconds'] / measured['step_s'] - 1):+.0f} %"
                print(
                    f"| {rate} | {mode.replace('-default', '')} | {measured['baseline_s']:.2f} | {measured['step_s']:.2f} "
                    f"| {found['seconds']:.2f} | {off} | {waits:.2f} | {100 * found['link_use']:.0f} % |",
                    flush=True,
                )
                if args.out:
                    line = {"rate": rate, "mode": mode, "measured": measured, "simulated": found}
                    line["cluster"] = simulator.cluster
                    with open(args.out, "a") as file:
                        file.write(json.dumps(line) + "\n")
        node, cpu = simulator.cluster["node"], simulator.cluster["cpu"]
        print(f"\nmemory {node['memory_bandwidth']}, a core moves {cpu['moves']}")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
