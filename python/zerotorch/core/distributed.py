"""Processes of one job: zerotorch's own group of ranks, and torch.distributed beside it."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import datetime
import faulthandler
import glob
import os
import signal
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from zerotorch import _C
from zerotorch.core.log import logger
from zerotorch.core.ranks import from_launcher, is_on_several_hosts
from zerotorch.errors import CommError, ConfigError

_group: _C.Group | None = None
_leaver: _Leaver | None = None

#: Groups that wait for ranks that never come are left as they are after this.
_TIME_TO_LEAVE_S = 5.0

#: What ProcessGroupGloo calls its threads, and how long one sleeps that is idle. It waits in a condition variable; one
#: that waits for the GIL would have had it by then.
_WORKER = "pt_gloo_runloop"
_IDLE_S = 0.005

def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: datetime.timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Joins this process to its job. *Collective.* Does nothing the second time.

    Initialises ``torch.distributed`` (gloo) where it is not, for programs that use it themselves, and zerotorch's own
    group of the same ranks. Ranks are found as their launcher says: torchrun, ``zero launch``, ``python -m
    zerotorch.run``, mpirun, srun; without one this process is a job of one rank.

    Args:
        dist_backend: of torch.distributed. "nccl" becomes "gloo" where there is no GPU.
        distributed_port: where ranks meet if MASTER_PORT is not set.
        timeout: of collectives of torch.distributed.
        dist_init_required: False: torch.distributed is initialised already, or a ConfigError.

    Raises:
        ConfigError: what the environment, the arguments and torch.distributed say differs.
        CommError: ranks do not arrive in time.
    """
    if dist_init_required is False and not dist.is_initialized():
        raise ConfigError("init_distributed(dist_init_required=False), and torch.distributed is not initialized")
    if not dist.is_initialized() and dist_init_required is not False:
        if init_method is None:
            meet_across_hosts()
        _init_torch(dist_backend, distributed_port, timeout, init_method, rank, world_size)
    global _leaver
    if _leaver is None and dist.is_initialized():
        _leaver = _Leaver()
    _check_accelerate(world_group().size)


def world_group() -> _C.Group:
    """The ranks of this job. *Collective* when it is called first."""
    global _group
    if _group is not None and not _group.failed:
        return _group
    _publish_environment()
    _find_ucx()
    _group = _C.init_distributed()
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) != (_group.rank, _group.size):
        raise ConfigError(
            f"torch.distributed says rank {dist.get_rank()} of {dist.get_world_size()}, and the launcher's environment "
            f"rank {_group.rank} of {_group.size}: start all ranks by one launcher"
        )
    _check_accelerate(_group.size)
    if _group.size > 1:
        _show_one_traceback(_group.rank)
        _print_stack_when_asked()
    return _group


def _find_ucx() -> None:
    """The wheel of UCX has its library where the loader does not look. For ranks that may be on several hosts."""
    if "MASTER_ADDR" not in os.environ or os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        return
    with contextlib.suppress(ImportError, OSError):
        import libucx  # type: ignore[import-not-found]

        libucx.load_library()


def _text_of(rank: int, mine: str) -> str:
    """That rank's, on all ranks. *Collective.*"""
    group = world_group()
    said = list(mine.encode())
    nbytes = torch.tensor([len(said)])
    group.broadcast(nbytes, rank)
    text = torch.tensor(said if rank == group.rank else [0] * int(nbytes), dtype=torch.uint8)
    if text.numel() > 0:
        group.broadcast(text, rank)
    return bytes(text.tolist()).decode()


def first_problem(mine: str | None) -> str | None:
    """The problem of the first rank that has one, with its number, on all ranks; None where none has. *Collective.*"""
    group = world_group()
    if group.size == 1:
        return mine
    for rank in range(group.size):
        text = _text_of(rank, mine or "")
        if text:
            return f"rank {rank}: {text}"
    return None


def text_of_first_rank(mine: str) -> str:
    """Rank 0's, on all ranks. *Collective.*"""
    return mine if world_group().size == 1 else _text_of(0, mine)


def _print_stack_when_asked() -> None:
    """A rank that waits for others for long sends them SIGURG: each prints where its program is, which nothing else
    knows of a wait in another library. Not where the program has a use of its own for the signal."""
    if signal.getsignal(signal.SIGURG) != signal.SIG_DFL:
        return
    with contextlib.suppress(Exception):  # an interpreter without a standard error
        faulthandler.register(signal.SIGURG, file=2, all_threads=False)


def _show_one_traceback(rank: int) -> None:
    """A rank that ends because another one failed says so in a line: that one shows its traceback."""
    earlier = sys.excepthook
    if getattr(earlier, "_of_zerotorch", False):
        return
    process = os.getpid()

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process:  # a forked child has no part in the group
            earlier(kind, error, trace)
        elif isinstance(error, CommError):
            print(f"zerotorch: rank {rank} ends: CommError: {error}", file=sys.stderr, flush=True)
            time.sleep(1)  # a rank that has failed itself ends before, and launchers name it
        else:
            earlier(kind, error, trace)
            # Not when the interpreter ends, which waits for the program's threads.
            if _group is not None and not issubclass(kind, KeyboardInterrupt):
                with contextlib.suppress(Exception):
                    _group.abort(f"rank {rank} raised {kind.__name__}: {error}")

    show._of_zerotorch = True  # type: ignore[attr-defined]
    sys.excepthook = show


def meet_across_hosts() -> None:
    """Sets MASTER_ADDR and MASTER_PORT, where the ranks of torch.distributed meet, for ranks on several hosts whose
    launcher sets neither: rank 0's address, and a free port of it. A loopback address is no meeting place of theirs, and is
    replaced. Does nothing for ranks of one host. *Collective*, over MPI."""
    if not is_on_several_hosts():
        return
    given = os.environ.get("MASTER_ADDR", "")
    if given and not _is_loopback(given):
        return
    if given:
        logger.warning(f"MASTER_ADDR={given}, and ranks are on several hosts: they meet at rank 0's address")
    group = world_group()
    place = torch.zeros(256, dtype=torch.uint8)
    if group.rank == 0:
        with socket.socket() as listener:
            listener.bind(("", 0))
            found = f"{_own_address()} {listener.getsockname()[1]}".encode()
        place[: len(found)] = torch.tensor(list(found), dtype=torch.uint8)
    group.broadcast(place, 0)
    address, port = bytes(place.tolist()).rstrip(b"\0").decode().split()
    os.environ["MASTER_ADDR"] = address
    os.environ.setdefault("MASTER_PORT", port)


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


def _own_address() -> str:
    """That other hosts reach this one at: of the way out, as Debian's /etc/hosts gives a host's name to its loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way_out:
        way_out.connect(("192.0.2.1", 9))  # nothing is sent
        return str(way_out.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


def _init_torch(
    backend: str | None, port: int, timeout: datetime.timedelta | None, init_method: str | None, rank: int, size: int
) -> None:
    if backend in (None, "nccl", "ccl", "mpi", "hccl") and not torch.cuda.is_available():
        backend = "gloo"
    found_rank, found_size = from_launcher("RANK"), from_launcher("WORLD_SIZE")
    if rank < 0:
        rank = int(found_rank or 0)
    if size < 0:
        size = int(found_size or 1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(size)
    os.environ.setdefault("LOCAL_RANK", from_launcher("LOCAL_RANK") or "0")
    if beside := from_launcher("LOCAL_WORLD_SIZE"):
        os.environ.setdefault("LOCAL_WORLD_SIZE", beside)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    extra: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if size == 1 and init_method is None and "MASTER_PORT" not in os.environ:
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, **extra)
        return
    os.environ.setdefault("MASTER_PORT", str(port))
    if size > 1:
        _check_port(os.environ["MASTER_PORT"])
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size, **extra)


def _check_port(port: str) -> None:
    if not port.isdigit() or not 0 < int(port) < 65536:  # torch.distributed waits for ever at others
        raise ConfigError(f"environment variable MASTER_PORT: got '{port}', wanted a port, 1 to 65535")


def _workers() -> list[list[str]]:
    """Of each thread in which torch.distributed runs collectives: its state and how often it was switched."""
    found = []
    for status in glob.glob("/proc/self/task/*/status"):
        with contextlib.suppress(OSError), open(status) as file:  # a thread may end meanwhile
            lines = file.read().splitlines()
            if lines[0].split()[-1] == _WORKER:
                found.append([line for line in lines if line.startswith(("Pid:", "State:")) or "ctxt_switches" in line])
    return sorted(found)


def _wait_until_workers_are_idle(deadline: float) -> None:
    """A worker that sleeps, and has not woken while the GIL was free for it, has nothing left to release."""
    seen = _workers()
    while seen and time.monotonic() < deadline:
        time.sleep(_IDLE_S)
        before, seen = seen, _workers()
        if before == seen and all("sleeping" in "".join(worker) for worker in seen):
            return


class _Leaver:
    """Ends torch.distributed's groups while the interpreter is whole.

    Their threads release a collective's tensors a moment after it is done, which takes the GIL. A thread that asks for
    the GIL while the interpreter ends is ended inside C++ code, and the process with it (SIGABRT, after a training that
    went well). A group that something still refers to keeps its threads, so leave() waits until they are idle.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._asked, self._done = threading.Event(), threading.Event()
        # Begun now: some interpreters start no thread at their end. Not one of `threading`: programs that count theirs
        # would find it left over.
        _thread.start_new_thread(self._run, ())

    def leave(self) -> None:
        failed = getattr(sys, "last_value", None) is not None
        # Collectives that a failed rank has begun may never end, and a forked child has no part in them.
        if failed or os.getpid() != self._process:
            return
        deadline = time.monotonic() + _TIME_TO_LEAVE_S
        if dist.is_initialized():
            self._asked.set()
            self._done.wait(_TIME_TO_LEAVE_S)
        _wait_until_workers_are_idle(deadline)

    def _run(self) -> None:
        self._asked.wait()
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
        self._done.set()


@atexit.register
def _leave_torch() -> None:
    """After what programs have registered since, which may still use the groups."""
    if _leaver is not None:
        _leaver.leave()


def _publish_environment() -> None:
    """Ranks that were started by other means than a launcher, as torch.multiprocessing.spawn, say so to the library."""
    if not dist.is_initialized() or dist.get_world_size() == 1 or _C.launched_rank() is not None:
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ.update(ZERO_RANK=str(rank), ZERO_WORLD_SIZE=str(size))
    if "ZERO_JOB_ID" not in os.environ:
        name: list[str | None] = [f"{os.getpid()}-{os.urandom(6).hex()}"]
        dist.broadcast_object_list(name, src=0)
        os.environ["ZERO_JOB_ID"] = str(name[0])


def _check_accelerate(size: int) -> None:
    """accelerate without a GPU can take every rank for a job of its own, without a word."""
    state = sys.modules.get("accelerate.state")
    shared = getattr(getattr(state, "PartialState", None), "_shared_state", None)
    if not shared or "num_processes" not in shared or shared["num_processes"] == size:
        return
    raise ConfigError(
        f"accelerate counts {shared['num_processes']} processes and this job has {size}: without a GPU accelerate makes "
        "every rank a job of its own, which would train on the same data and save over one another; call "
        "zerotorch.integrations.hf.configure() before accelerate or a Trainer is made"
    )
