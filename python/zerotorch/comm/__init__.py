"""`deepspeed.comm`: thin names over torch.distributed, for programs that talk to other ranks themselves.

The engine has a transport of its own over the same ranks. Without a process group there is one rank, 0 of 1:
collectives are then copies, and groups are None. In a process that a launcher has started as one of several ranks,
collectives raise UsageError until `init_distributed` was called. Functions are collective unless they say "local".
"""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp as ReduceOp

from zerotorch.core import ranks
from zerotorch.core.log import logger
from zerotorch.core.ranks import is_initialized as is_initialized
from zerotorch.errors import UsageError

from .._modules import attach

Group = Any  # torch.distributed.ProcessGroup, which does not exist where torch was built without it

_engines: list[weakref.ref[Any]] = []


class Done:
    """What a collective of one rank returns for async_op=True."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def is_available() -> bool:
    """Whether torch was built with torch.distributed. Local."""
    return dist.is_available()


def init_distributed(*args: Any, **kwargs: Any) -> Any:
    """`zerotorch.init_distributed`."""
    from zerotorch.core.distributed import init_distributed as initialize  # with the compiled part

    return initialize(*args, **kwargs)


def mpi_discovery(distributed_port: int = 29500, verbose: bool = True) -> None:
    """Puts what mpirun or srun has told this process into RANK, LOCAL_RANK and WORLD_SIZE, where they are not set.

    MASTER_ADDR and MASTER_PORT are this host and `distributed_port` where they are not set; of ranks on several hosts the
    address of rank 0 and a free port of it. Local on one host, else *collective*.
    """
    for name, alone in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, ranks.from_launcher(name) or alone)
    if ranks.is_on_several_hosts():
        from zerotorch.core.distributed import meet_across_hosts  # with the compiled part

        meet_across_hosts()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(distributed_port))
    if verbose:
        logger.info("rank %s of %s", os.environ["RANK"], os.environ["WORLD_SIZE"])


def get_rank(group: Group = None) -> int:
    """This process's rank in `group` (None: all ranks); before there is one, what the launcher says, else 0. Local."""
    return dist.get_rank(group) if is_initialized() else ranks.rank()


def get_world_size(group: Group = None) -> int:
    """The number of ranks in `group`; before there is one, what the launcher says, else 1. Local."""
    return dist.get_world_size(group) if is_initialized() else ranks.world_size()


def get_local_rank() -> int:
    """This process's place on its host, from the launcher's LOCAL_RANK, else 0. Local."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_world_group() -> Group:
    """The group of all ranks; None for one rank without a process group. Local."""
    return None if _is_alone() else dist.group.WORLD


def new_group(ranks: Sequence[int] | None = None, **kwargs: Any) -> Group:
    """A group of some ranks (None: all), made by all ranks; keywords go to torch.distributed.new_group."""
    return None if _is_alone() else dist.new_group(ranks, **kwargs)


def get_global_rank(group: Group = None, group_rank: int = 0) -> int:
    """The rank, among all, of `group_rank` in `group`. Local."""
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def get_all_ranks_from_group(group: Group = None) -> list[int]:
    """The ranks, among all, of a group, in its order. Local."""
    return [get_global_rank(group, rank) for rank in range(get_world_size(group))]


def destroy_process_group(group: Group = None) -> None:
    """Ends a group, or with None all of them; nothing where there is none."""
    if is_initialized():
        dist.destroy_process_group(group)


def barrier(group: Group = None, async_op: bool = False, device_ids: list[int] | None = None) -> Any:
    """Returns when all ranks have called it."""
    return _done(async_op) if _is_alone() else dist.barrier(group, async_op, device_ids)


def broadcast(tensor: Tensor, src: int, group: Group = None, async_op: bool = False) -> Any:
    """`tensor` of rank `src` (among all ranks) into `tensor` of the others: same shape and dtype everywhere."""
    return _done(async_op) if _is_alone() else dist.broadcast(tensor, src, group, async_op)


def all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Any:
    """`tensor` becomes the sum, or what `op` says, of all ranks' tensors of this shape and dtype."""
    return _done(async_op) if _is_alone() else dist.all_reduce(tensor, op, group, async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    """`tensor` of every rank into `tensor_list`, by rank."""
    if _is_alone():
        tensor_list[0].copy_(tensor)
        return _done(async_op)
    return dist.all_gather(tensor_list, tensor, group, async_op)


def _with_a_dimension(tensor: Tensor) -> Tensor:
    """NCCL gathers scalars, gloo only tensors of one dimension or more."""
    return tensor if tensor.dim() > 0 else tensor.view(1)


def all_gather_into_tensor(
    output_tensor: Tensor, tensor: Tensor, group: Group = None, async_op: bool = False
) -> Any:
    """`tensor` of every rank into `output_tensor`, one after the other by rank: ranks times its elements."""
    if _is_alone():
        output_tensor.copy_(tensor.view_as(output_tensor))
        return _done(async_op)
    return dist.all_gather_into_tensor(output_tensor, _with_a_dimension(tensor), group, async_op)


def reduce_scatter_tensor(
    output_tensor: Tensor,
    tensor: Tensor,
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """This rank's part, by rank, of the sum (or what `op` says) of all ranks' `tensor`: ranks times as long."""
    if _is_alone():
        output_tensor.copy_(tensor.view_as(output_tensor))
        return _done(async_op)
    return dist.reduce_scatter_tensor(output_tensor, tensor, op, group, async_op)


allgather_fn = all_gather_into_tensor
reduce_scatter_fn = reduce_scatter_tensor


def has_all_gather_into_tensor() -> bool:
    """True. Local."""
    return True


has_reduce_scatter_tensor = has_all_reduce_coalesced = has_all_gather_into_tensor


def all_to_all_single(
    output: Tensor,
    tensor: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Part r of `tensor` (along its first dimension) to rank r, and what the ranks sent into `output`, by rank."""
    if _is_alone():
        output.copy_(tensor.view_as(output))
        return _done(async_op)
    return dist.all_to_all_single(output, tensor, output_split_sizes, input_split_sizes, group, async_op)


def all_to_all(
    output_tensor_list: list[Tensor],
    input_tensor_list: list[Tensor],
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Tensor r of `input_tensor_list` to rank r, and what rank r has sent into tensor r of `output_tensor_list`."""
    if _is_alone():
        output_tensor_list[0].copy_(input_tensor_list[0])
        return _done(async_op)
    return dist.all_to_all(output_tensor_list, input_tensor_list, group, async_op)


def reduce(tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False) -> Any:
    """`tensor` of rank `dst` becomes the sum, or what `op` says, of all ranks'; the others' are undefined."""
    return _done(async_op) if _is_alone() else dist.reduce(tensor, dst, op, group, async_op)


def reduce_scatter(
    output: Tensor,
    input_list: list[Tensor],
    op: Any = ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """The sum (or what `op` says) of all ranks' tensor of `input_list` that has this rank's number."""
    if _is_alone():
        output.copy_(input_list[0])
        return _done(async_op)
    return dist.reduce_scatter(output, input_list, op, group, async_op)


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int = 0,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """`tensor` of every rank into `gather_list` of rank `dst`, by rank."""
    if _is_alone():
        if gather_list:
            gather_list[0].copy_(tensor)
        return _done(async_op)
    return dist.gather(tensor, gather_list, dst, group, async_op)


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int = 0,
    group: Group = None,
    async_op: bool = False,
) -> Any:
    """Tensor r of rank `src`'s `scatter_list` into `tensor` of rank r."""
    if _is_alone():
        if scatter_list:
            tensor.copy_(scatter_list[0])
        return _done(async_op)
    return dist.scatter(tensor, scatter_list, src, group, async_op)


def all_reduce_coalesced(
    tensors: list[Tensor], op: Any = ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> Any:
    """all_reduce() of each of `tensors`."""
    return _together([all_reduce(tensor, op, group, async_op) for tensor in tensors], async_op)


def all_gather_coalesced(
    output_tensors: list[Tensor], input_tensors: list[Tensor], group: Group = None, async_op: bool = False
) -> Any:
    """all_gather_into_tensor() of each of `input_tensors` into the one of `output_tensors`."""
    pairs = zip(output_tensors, input_tensors, strict=True)
    return _together([all_gather_into_tensor(out, tensor, group, async_op) for out, tensor in pairs], async_op)


def inference_all_reduce(tensor: Tensor, op: Any = ReduceOp.SUM, group: Group = None) -> Any:
    """all_reduce()."""
    return all_reduce(tensor, op, group)


def monitored_barrier(group: Group = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    """barrier() that names the ranks which have not come after `timeout`, a timedelta."""
    return None if _is_alone() else dist.monitored_barrier(group, timeout, wait_all_ranks)


def send(tensor: Tensor, dst: int, group: Group = None, tag: int = 0) -> None:
    """`tensor` to rank `dst`, which calls recv(). Of two ranks."""
    _require_others("send")
    dist.send(tensor, dst, group, tag)


def recv(tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0) -> Any:
    """Into `tensor` what rank `src`, or any, sends. Of two ranks. Returns the sender's rank."""
    _require_others("recv")
    return dist.recv(tensor, src, group, tag)


def isend(tensor: Tensor, dst: int, group: Group = None, tag: int = 0) -> Any:
    """send() that does not wait. Returns what to wait() for."""
    _require_others("isend")
    return dist.isend(tensor, dst, group, tag)


def irecv(tensor: Tensor, src: int | None = None, group: Group = None, tag: int = 0) -> Any:
    """recv() that does not wait. Returns what to wait() for."""
    _require_others("irecv")
    return dist.irecv(tensor, src, group, tag)


def all_gather_object(object_list: list[Any], obj: Any, group: Group = None) -> None:
    """A picklable object of every rank into `object_list`, by rank."""
    if _is_alone():
        object_list[0] = obj
    else:
        dist.all_gather_object(object_list, obj, group)


def broadcast_object_list(object_list: list[Any], src: int, group: Group = None, device: Any = None) -> None:
    """Picklable objects of rank `src` (among all ranks) into `object_list` of the others."""
    if not _is_alone():
        dist.broadcast_object_list(object_list, src, group, device)


def register_engine(engine: Any) -> None:
    """Has `log_summary` ask `engine._comms_summary()` as long as it lives. Local, in the same order on all ranks."""
    _engines[:] = [reference for reference in _engines if reference() is not None] + [weakref.ref(engine)]


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Logs on rank 0 what the engines have sent, and returns it with `return_dict`.

    Engines count where `comms_logger.enabled` of their configuration is true; each is asked for
    `_comms_summary(show_straggler)`: {operation: {figure: number}}. Figures of several engines are by engine, from 0.
    """
    alive = [engine for engine in (reference() for reference in _engines) if engine is not None]
    summaries: dict[str, Mapping[str, Mapping[str, Any]]] = {
        str(i): engine._comms_summary(show_straggler) for i, engine in enumerate(alive)
    }
    if get_rank() == 0:
        lines = [
            f"engine {i}, {operation}: " + ", ".join(f"{name} {value}" for name, value in figures.items())
            for i, summary in summaries.items()
            for operation, figures in summary.items()
        ]
        logger.warning("\n".join(lines) or "no communication was counted: set comms_logger.enabled")
    return dict(summaries) if return_dict else None


def _is_alone() -> bool:
    if is_initialized():
        return False
    count = get_world_size()
    if count > 1:
        raise UsageError(f"there are {count} ranks, which cannot talk yet: call init_distributed first")
    return True


def _require_others(what: str) -> None:
    if _is_alone():
        raise UsageError(f"{what}(): there is one rank, and no other to talk to")


class Together:
    """Several collectives that are under way."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> bool:
        return all([work.wait() for work in self._works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _together(works: list[Any], async_op: bool) -> Together | None:
    return Together(works) if async_op else None


def _done(async_op: bool) -> Done | None:
    return Done() if async_op else None


class TorchBackend:
    """torch.distributed, which `deepspeed.comm` is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.name = "torch"
        self.initialized = is_initialized()

    @staticmethod
    def get_all_gather_function() -> Callable[..., Any]:
        return dist.all_gather_into_tensor

    @staticmethod
    def get_reduce_scatter_function() -> Callable[..., Any]:
        return dist.reduce_scatter_tensor


__getattr__, __dir__ = attach(__name__)
