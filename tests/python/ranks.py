"""Ranks for tests: processes that live as long as the tests, and run a function of a test on all of them at once."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_TIMEOUT_S = 120
_pools: dict[int, "Pool"] = {}


class Failed(AssertionError):
    """A rank has raised; the message has its traceback."""


class Pool:
    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        job = f"{os.getpid()}-{os.urandom(6).hex()}"
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port, job, list(sys.path)), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((function.__module__, function.__qualname__, pickle.dumps(args)))
        results: list[Any] = []
        problems = []
        for rank, pipe in enumerate(self.pipes):
            try:
                if not pipe.poll(timeout_s):
                    raise EOFError(f"no answer within {timeout_s} s")
                ok, value = pipe.recv()
            except (EOFError, ConnectionError) as error:
                ok, value = False, f"rank died or hung: {error}"
            if not ok:
                problems.append(f"rank {rank}: {value}")
                timeout_s = min(timeout_s, 20)
            results.append(value)
        if problems:
            raise Failed("\n".join(problems))
        return results

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)


def run(size: int, function: Callable[..., Any], *args: Any, timeout_s: float = _TIMEOUT_S) -> list[Any]:
    """What `function(*args)`, a function of a module, returns on each of `size` ranks. A failure ends these ranks."""
    if size not in _pools:
        _pools[size] = Pool(size)
    try:
        return _pools[size].run(function, args, timeout_s)
    except BaseException:
        _pools.pop(size).close()
        raise


@atexit.register
def close_all() -> None:
    while _pools:
        _pools.popitem()[1].close()


def _serve(pipe: Connection, rank: int, size: int, port: int, job: str, path: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = path
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ZERO_JOB_ID=job,
        OMP_NUM_THREADS="1",
    )
    import importlib

    import torch

    torch.set_num_threads(1)
    while True:
        try:
            module, name, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(*pickle.loads(args))))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
