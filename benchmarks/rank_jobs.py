"""Jobs of several ranks for benchmarks: a process per rank, what they print, and the memory they take together."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time


def proportional(pids: list[int]) -> int:
    """Bytes of the processes, shared pages counted once (proportional set size)."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
        except (OSError, StopIteration):
            pass
    return total


def run(
    command: list[str],
    ranks: int,
    timeout: float,
    cwd: str | None = None,
    samples: list[tuple[float, int]] | None = None,
    accelerator: str = "cpu",
) -> tuple[list[subprocess.CompletedProcess[str]], int]:
    """By rank, and the peak of their proportional memory, looked at four times a second and kept in `samples` with
    time.monotonic(), which a rank shares. Raises TimeoutExpired."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": accelerator, "ZERO_JOB_ID": f"bench-{os.getpid()}-{port}",
        "ZERO_LOG_LEVEL": "error", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.25):
            now = proportional([process.pid for process in processes])
            peak = max(peak, now)
            if samples is not None:
                samples.append((time.monotonic(), now))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        done.set()
        watcher.join()
        for process in processes:
            process.kill()
    ended = [
        subprocess.CompletedProcess(command, process.returncode, out, err)
        for process, (out, err) in zip(processes, outputs, strict=True)
    ]
    return ended, peak
