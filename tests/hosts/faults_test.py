#!/usr/bin/env python3
"""What becomes of a job over two hosts when a rank or a link is lost: who says what, and how soon all has ended.

Hosts are namespaces (scripts/hosts.sh). `faults_test.py PROGRAM [fault or launcher...]`, PROGRAM being steady_ranks. Prints a table of
the seconds from the fault to the end of the last rank and of the launcher. Exit status 77 where there are no namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ROOT / ".venv/bin/torchrun"
MOST_S = 12.0  # 10 s, and 2 s for a machine that is busy with other tests

# By launcher: what starts two ranks, one a host, of "$PROGRAM".
LAUNCHERS = {
    "mpirun": "mpirun -n 2 --hostfile $HOSTFILE --mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 "
    "--mca oob_tcp_keepalive_probes 6 $PROGRAM",
    "by hand": "export MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 WORLD_SIZE=2; "
    '(on_host 2 "RANK=1 $PROGRAM" &) ; RANK=0 $PROGRAM',
    "torchrun": 'run="$TORCHRUN --nnodes 2 --master-addr 10.77.0.1 --master-port 29512 --no-python"; '
    '(on_host 2 "$run --node-rank 1 $PROGRAM" &) ; $run --node-rank 0 $PROGRAM',
}
RANK_OF_2 = "pid=$(pgrep -f '^[^ ]*steady_ranks' | while read p; do [ \"$(readlink /proc/$p/ns/net)\" = "
RANK_OF_2 += '"$(readlink /proc/$(cat ${HOSTFILE%/*}/init2)/ns/net)" ] && echo $p; done | tail -n 1)'

# By fault: what is done once the ranks run, whether the job must end, and what is said then (mpirun itself tells of a
# rank that a signal has ended).
FAULTS = {
    "none": ("true", False, ""),
    "kill": (RANK_OF_2 + "; kill -KILL $pid", True, r"rank 1 (\(pid \d+\) ended without leaving|with PID \d+ .*signal 9)"),
    "stop": (RANK_OF_2 + "; kill -STOP $pid", True, "stopped or frozen"),
    "freeze": ("freeze 2", True, "stopped or frozen"),
    "cut": ("link 2 down", True, "host h2"),
    "outage of 5 s": ("link 2 down; sleep 5; link 2 up", False, ""),
}


def run(launcher: str, fault: str, program: str, seconds: float) -> tuple[float, str, bool]:
    """Seconds from the fault to the end, the output, and whether the job was still there after a long wait."""
    does, _, _ = FAULTS[fault]
    script = (
        f"({LAUNCHERS[launcher]}) > $OUT 2>&1 & job=$!\n"
        "for i in $(seq 300); do [ $(grep -c '^rank ' $OUT) = 2 ] && break; sleep 0.1; done\n"
        "sleep 1\n"
        f"date +%s.%N > $OUT.fault; ({does}); "
        "wait $job; echo exit $? >> $OUT; date +%s.%N > $OUT.end\n"
        # A rank that was stopped ends, too, when it goes on.
        f"thaw 2; for i in $(seq 50); do ({RANK_OF_2}; [ -n \"$pid\" ]) || break; sleep 0.1; done\n"
        f"({RANK_OF_2}; [ -z \"$pid\" ]) || echo 'a rank is left' >> $OUT\n"
    )
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        out = Path(folder) / "out"
        out.touch()
        environment = {**os.environ, "OUT": str(out), "PROGRAM": f"{program} {seconds} 20", "OMP_NUM_THREADS": "1"}
        environment |= {"TORCHRUN": str(TORCHRUN), "PYTHONWARNINGS": "ignore"}
        command = [str(ROOT / "scripts/hosts.sh"), "2", "-", script]
        job = subprocess.Popen(command, env=environment, start_new_session=True, cwd=ROOT)
        try:
            job.wait(60)
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
            job.terminate()
            job.wait(20)
        text = out.read_text()
        begin = float(Path(f"{out}.fault").read_text())
        end = Path(f"{out}.end")
        return (float(end.read_text()) if end.exists() else time.time()) - begin, text, hung


def check(launcher: str, fault: str, program: str) -> list[str]:
    _, must_end, word = FAULTS[fault]
    seconds, text, hung = run(launcher, fault, program, 60 if must_end else 9)
    problems = []
    if hung:
        problems.append("it hangs")
    if "a rank is left" in text:
        problems.append("a rank is left")
    if must_end:
        if seconds > MOST_S:
            problems.append(f"its end took {seconds:.1f} s")
        if not re.search(word, text, re.S):
            problems.append(f"nothing says '{word}'")
    elif "sums" not in text or "CommError" in text or "exit 0" not in text:
        problems.append("it did not go on to a good end")
    print(f"{launcher:10} {fault:14} {seconds:5.1f} s  {'; '.join(problems) or 'held'}", flush=True)
    if problems or os.environ.get("SHOW"):
        print(re.sub("^", "    ", text, flags=re.M), flush=True)
    return problems


def main() -> int:
    program = sys.argv[1]
    wanted = sys.argv[2:]
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        print("needs root, iproute2 and util-linux")
        return 77
    problems = []
    for launcher in LAUNCHERS:
        if not {"mpirun": shutil.which("mpirun"), "torchrun": TORCHRUN.exists()}.get(launcher, True):
            continue
        for fault in FAULTS:
            if not wanted or fault in wanted or launcher in wanted:
                problems += check(launcher, fault, program)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
