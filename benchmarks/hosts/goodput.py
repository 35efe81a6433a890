#!/usr/bin/env python3
"""A training over hosts that fail again and again: what is left of the time, and whether the weights are those of a run
that nothing disturbed.

Hosts are namespaces of this machine (scripts/hosts.sh). `zero launch --hostfile --nnodes 1:N --max-restarts` runs
`zero train`. At random times, `--mtbf` seconds apart in the mean, a rank is killed, a host loses all its processes, is
frozen for a while, or its link is cut for a while. `zero plan --cluster` predicts the same from the measured times of
detection and restart. Root, iproute2, Open MPI; `cmake --build build/release --target zero`.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
AWAY_S = 12.0  # for which a host is frozen or cut off: more than it takes to be noticed
GRACE_S = 6.0  # after the end of a fault, and before the first one


def train_command(args: argparse.Namespace, run: str) -> list[str]:
    zero = str(args.zero)
    launch = [zero, "launch", "--hostfile", os.environ["HOSTFILE"], "--nnodes", f"1:{args.hosts}", "--max-restarts", "100000"]
    train = [zero, "train", "--run-dir", run, "--preset", args.preset, "--steps", str(args.steps), "--batch-size", "12"]
    train += ["--micro-batch", "1", "--dtype", args.dtype, "--stage", str(args.stage), "--eval-every", "0", "--eval-batches", "1"]
    train += ["--checkpoint-every", str(args.checkpoint_every), "--cache-dir", "cache", "--sample-length", "0"]
    if args.data:
        train += ["--data", args.data]
    return [*launch, "--log-dir", f"{run}-logs", *train]


class Run:
    """A job under way, and the times at which its steps were seen to be over."""

    def __init__(self, args: argparse.Namespace, name: str):
        self.metrics = pathlib.Path(name) / "metrics.jsonl"
        self.launches = pathlib.Path(f"{name}-logs") / "launch.jsonl"
        self.seen: list[tuple[float, int]] = []
        with open(f"{name}.out", "w", encoding="utf-8") as out:
            self.job = subprocess.Popen(train_command(args, name), stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def look(self) -> None:
        try:
            lines = self.metrics.read_text(encoding="utf-8").splitlines()
            step = int(json.loads(lines[-1])["step"])
        except (OSError, IndexError, ValueError, KeyError):
            return  # none yet, or half of a line
        if not self.seen or self.seen[-1][1] != step:
            self.seen.append((time.time(), step))

    def starts(self) -> list[float]:
        events = [json.loads(line) for line in self.launches.read_text(encoding="utf-8").splitlines()]
        return [datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp() for e in events if e["event"] == "start"]

    def trains(self, since: float) -> bool:
        return bool(self.seen) and self.seen[-1][0] > since

    def is_over(self) -> bool:
        return self.job.poll() is not None

    def stop(self) -> None:
        if not self.is_over():
            os.killpg(self.job.pid, signal.SIGKILL)


def strike(draw: random.Random, hosts: int) -> tuple[str, float]:
    """Does something bad. What, and the time until it is over."""
    host = draw.randrange(2, hosts + 1)  # the launcher is on the first
    kind = draw.choice(["kill", "crash", "freeze", "cut"])
    if kind == "kill":
        rank = draw.randrange(1, hosts + 1)
        subprocess.run(["on_host", str(rank), "pkill -KILL -n -x zero || true"], check=False)
        return f"kill a rank on h{rank}", 0
    if kind == "crash":
        subprocess.run(["crash", str(host)], check=False)
        return f"kill all of h{host}", 0
    does, mends = (["freeze", str(host)], ["thaw", str(host)]) if kind == "freeze" else (["link", str(host), "down"], ["link", str(host), "up"])
    subprocess.run(does, check=False)
    subprocess.Popen(["bash", "-c", f"sleep {AWAY_S}; {' '.join(mends)}"])
    return f"{kind} h{host}", AWAY_S


def disturbed(args: argparse.Namespace, name: str, mtbf: float) -> tuple[Run, list[tuple[float, str]]]:
    """Runs to the end. Faults begin while it trains only: the time between them is of training."""
    draw = random.Random(args.seed)
    run = Run(args, name)
    faults: list[tuple[float, str]] = []
    deadline = time.time() + args.timeout
    trained = 0.0  # since the last fault
    next_in, calm_until, before = draw.expovariate(1 / mtbf) if mtbf else float("inf"), 0.0, time.time()
    while not run.is_over():
        if time.time() > deadline:
            run.stop()
            sys.exit(f"goodput.py: {name} took more than {args.timeout:g} s; see {name}.out")
        time.sleep(0.05)
        run.look()
        now = time.time()
        if run.trains(faults[-1][0] if faults else 0) and now > calm_until:
            trained += now - before
        before = now
        if trained < next_in or run.seen[-1][1] >= args.steps:
            continue
        what, lasts = strike(draw, args.hosts)
        faults.append((now, what))
        print(f"{now - run.seen[0][0]:7.1f} s  step {run.seen[-1][1]:5d}  {what}", file=sys.stderr, flush=True)
        trained, next_in, calm_until = 0.0, draw.expovariate(1 / mtbf), now + lasts + (GRACE_S if lasts else 0)
        deadline_of_fault = now + 60
        while not run.is_over() and not any(start > now for start in run.starts()):  # until the ranks are started again
            if time.time() > deadline_of_fault:
                print(f"goodput.py: nothing came of '{what}'", file=sys.stderr, flush=True)
                break
            time.sleep(0.05)
            run.look()
        while not run.is_over() and not run.trains(run.starts()[-1]) and time.time() < deadline_of_fault + 60:
            time.sleep(0.05)
            run.look()
        before = time.time()
    if run.job.returncode != 0:
        sys.exit(f"goodput.py: {name} ended with exit code {run.job.returncode}; see {name}.out")
    return run, faults


def predicted(args: argparse.Namespace, mtbf: float, detection: float, restart: float, interval: float) -> float:
    cluster = {"nodes": args.hosts, "ranks_per_node": 1}
    failures = {"host_mtbf": mtbf * args.hosts, "detection": detection, "restart": restart, "checkpoint": 0, "interval": interval}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(cluster | {"failures": {key: f"{value:.3f}s" for key, value in failures.items()}}, file)
        file.flush()
        plan = [str(args.zero), "plan", "--preset", args.preset, "--cluster", file.name, "--json"]
        return float(json.loads(subprocess.run(plan, capture_output=True, text=True, check=True).stdout)["goodput"]["of_time"])


def inside(args: argparse.Namespace) -> int:
    calm, _ = disturbed(args, "calm", 0)
    steps = calm.seen[-1][1] - calm.seen[0][1]
    step_s = (calm.seen[-1][0] - calm.seen[0][0]) / steps
    run, faults = disturbed(args, "disturbed", args.mtbf)
    starts = run.starts()
    detections, restarts = [], []
    for begin, _ in faults:
        started = next((s for s in starts if s > begin), None)
        stepped = next((t for t, _ in run.seen if started is not None and t > started), None)
        if started is None or stepped is None:
            continue
        detections.append(started - begin)
        restarts.append(max(0.0, stepped - started - step_s))
    wall = run.seen[-1][0] - run.seen[0][0]
    same = subprocess.run([str(args.zero), "ckpt", "diff", "calm", "disturbed"], capture_output=True, text=True, check=False)
    # A random stream is there as often as there are ranks.
    is_same = not re.search(r"^ +(weight|exp_avg|exp_avg_sq|buffer)", same.stdout, re.M) and "tensors are equal" in same.stdout
    useful = steps * step_s
    down = sum(detections) + sum(restarts)
    result = {
        "hosts": args.hosts, "steps": steps, "step_s": step_s, "faults": len(faults), "starts": len(starts),
        "wall_s": wall, "calm_s": useful, "detection_s": statistics.mean(detections or [0]), "restart_s": statistics.mean(restarts or [0]),
        "goodput": useful / wall, "same_weights": is_same,
    }
    if faults:
        mtbf = (wall - down) / len(faults)
        result |= {"mtbf_s": mtbf, "predicted": predicted(args, mtbf, result["detection_s"], result["restart_s"], args.checkpoint_every * step_s)}
    print(json.dumps(result, indent=2))
    if not is_same:
        print((same.stdout + same.stderr)[-2000:], file=sys.stderr)
    return 0 if is_same else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="of one rank each (default 4)")
    parser.add_argument("--rate", default="1gbit", help="of a host's link, as tc takes it (default 1gbit)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--mtbf", type=float, default=30, help="mean seconds of training between faults (default 30)")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps (default 20)")
    parser.add_argument("--preset", default="gpt-2m")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--data", help="as of zero train")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that each of the two runs may take")
    parser.add_argument("--zero", type=pathlib.Path, default=ROOT / "build/release/apps/zero/zero")
    parser.add_argument("--folder", help="for the runs (default: a temporary one)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.zero = args.zero.resolve()
    if args.inside:
        return inside(args)
    if os.geteuid() != 0:
        parser.error("needs root, for namespaces")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        folder = pathlib.Path(args.folder or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, str(pathlib.Path(__file__).resolve()), *sys.argv[1:], "--inside"]
        command = [str(ROOT / "scripts/hosts.sh"), str(args.hosts), args.rate, " ".join(f"'{word}'" for word in words)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ZERO_LOG_LEVEL": "warning"}
        return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
