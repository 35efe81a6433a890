"""Ranks of this host as processes: their environment, their signals, and their end. Imports no torch."""

import contextlib
import ctypes
import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from zerotorch.errors import UsageError

GRACE_S = 8.0
KILL_AFTER_S = 3.0
POLL_S = 0.05
#: Where ranks of several hosts meet unless they are told otherwise: torchrun's.
MASTER_PORT = 29500
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    """A TCP port of this host that nobody listens on now, below those that connections get by themselves: one of these
    could take it before rank 0 listens."""
    for port in random.sample(range(10_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UsageError("no free TCP port between 10000 and 32000 on this host: set MASTER_PORT and use torchrun")


@dataclasses.dataclass(frozen=True)
class Place:
    """Which of a job's ranks are on this host: `local_size` from `first_rank` on, of `world_size`."""

    world_size: int
    local_size: int
    first_rank: int = 0
    host: int = 0
    hosts: int = 1

    def rank_environment(self, local_rank: int, master_addr: str, master_port: int) -> dict[str, str]:
        """The environment of one of the ranks of this host, as torchrun makes it, on top of ours.

        Cores are shared out by OMP_NUM_THREADS unless it is set. The installed zerotorch.pth answers for deepspeed.
        """
        cores = len(os.sched_getaffinity(0))
        rank = str(self.first_rank + local_rank)
        return {
            "OMP_NUM_THREADS": str(max(1, cores // self.local_size)),
            **os.environ,
            "RANK": rank,
            "ROLE_RANK": rank,
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(self.world_size),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.host),
            "GROUP_WORLD_SIZE": str(self.hosts),
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": str(master_port),
            "ZEROTORCH_AS_DEEPSPEED": "1",
        }


def run_ranks(
    place: int | Place,
    command: Callable[[int], Sequence[str]],
    *,
    master_addr: str = "127.0.0.1",
    master_port: int | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Runs `command(local_rank)` for each rank of this host and waits for all of them; must be called in the main thread.

    `place`: a number of ranks is a job of this host. Where it has others, each of them calls this, and `master_port` is
    the same on all.

    Signals go to all ranks; a second one that stops (SIGINT, SIGTERM, SIGHUP, SIGQUIT) kills them. From the first
    failure, or the first signal that stops, the other ranks may go on for `grace_s` seconds, get SIGTERM then, and
    SIGKILL 3 seconds later. When this process dies, so do the ranks.

    Returns the exit code of the first rank that failed (128 + signal for one that was killed), else 0.
    """
    if isinstance(place, int):
        place = Place(world_size=place, local_size=place)
    port = master_port or (free_port() if place.hosts == 1 else MASTER_PORT)
    job = _Job(grace_s, place)
    heeded = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    previous = {number: signal.signal(number, job.on_signal) for number in heeded}
    try:
        for rank in range(place.local_size):
            job.start(command(rank), place.rank_environment(rank, master_addr, port))
        return job.wait()
    finally:
        job.signal_all(signal.SIGKILL)
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Job:
    def __init__(self, grace_s: float, place: Place) -> None:
        self.grace_s = grace_s
        self.place = place
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.first_failure: int | None = None
        self.ending_since: float | None = None
        self.stops = 0
        self.last_sent: int | None = None

    def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        # On their own, a signal reaches the rank's processes too, and the terminal's Ctrl-C only us.
        self.ranks.append(
            subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=_die_with(os.getpid()))
        )

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in STOPPING:
            self.stops += 1
            self.begin_to_end()
        self.signal_all(signal.SIGKILL if self.stops > 1 else number)

    def begin_to_end(self) -> None:
        if self.ending_since is None:
            self.ending_since = time.monotonic()

    def signal_all(self, number: int) -> None:
        for rank in self.ranks:
            if rank.returncode is None:
                try:
                    os.killpg(rank.pid, number)
                except ProcessLookupError:
                    pass  # ended since the last poll

    def wait(self) -> int:
        while any([rank.poll() is None for rank in self.ranks]):
            self.look_for_failure()
            self.escalate()
            time.sleep(POLL_S)
        self.look_for_failure()
        return 0 if self.first_failure is None else _exit_code(self.ranks[self.first_failure])

    def look_for_failure(self) -> None:
        if self.first_failure is not None:
            return
        self.first_failure = next((i for i, rank in enumerate(self.ranks) if rank.returncode not in (None, 0)), None)
        if self.first_failure is not None:
            rank, code = self.place.first_rank + self.first_failure, _exit_code(self.ranks[self.first_failure])
            here = "" if self.place.hosts == 1 else f" on {socket.gethostname()}"
            print(f"zerotorch: rank {rank} of {self.place.world_size}{here} failed first, with exit code {code}", file=sys.stderr)
            self.begin_to_end()

    def escalate(self) -> None:
        if self.ending_since is None:
            return
        ending_s = time.monotonic() - self.ending_since
        if ending_s > self.grace_s:
            number = signal.SIGKILL if ending_s > self.grace_s + KILL_AFTER_S else signal.SIGTERM
            if number != self.last_sent:
                self.last_sent = number
                self.signal_all(number)


def _exit_code(rank: subprocess.Popen[bytes]) -> int:
    code = rank.returncode
    return 128 - code if code < 0 else code


def _die_with(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None).prctl

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return in_child
