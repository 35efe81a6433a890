"""Parameters of zero.Init on their way to an engine: one copy for all ranks of a host.

The first rank of a host holds a module's values in memory that the others map privately: what these write is theirs
alone, until the first rank's values are asked for again. Nothing has a name that a crash could leave behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Any

import torch

from zerotorch import _C
from zerotorch.core.distributed import world_group
from zerotorch.core.parameters import marks
from zerotorch.errors import UsageError

_active: list[Any] = []  # zero.Init contexts that are open, the innermost last


class Block:
    """Memory of some parameters, the same on all ranks of a host."""

    def __init__(self, nbytes: int) -> None:
        """*Collective.*"""
        world = world_group()
        self.host = _host_group()
        self.is_first = self.host.rank == 0
        where = torch.zeros(2, dtype=torch.int64)
        descriptor = -1
        if self.is_first:
            descriptor = os.memfd_create("zerotorch-init", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, nbytes)
            where[0], where[1] = os.getpid(), descriptor
        self.host.broadcast(where, 0)
        if not self.is_first:
            descriptor = os.open(f"/proc/{int(where[0])}/fd/{int(where[1])}", os.O_RDONLY | os.O_CLOEXEC)
        flags = mmap.MAP_SHARED if self.is_first else mmap.MAP_PRIVATE
        self._map = mmap.mmap(descriptor, nbytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.host.barrier()  # all have opened it
        os.close(descriptor)
        self.spans_hosts = world.size > self.host.size

    def tensor(self, offset: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the block as a tensor with a storage of its own: it shares none with another parameter's. Local."""
        if shape.numel() == 0:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=shape.numel(), offset=offset).view(shape)

    def forget_writes(self, offset: int, nbytes: int) -> None:
        """This rank sees the first rank's values again; both are multiples of a page. Local."""
        if not self.is_first and nbytes > 0:
            self._map.madvise(mmap.MADV_DONTNEED, offset, nbytes)


class Placed:
    """Where a parameter lies in a block."""

    def __init__(self, block: Block, offset: int, nbytes: int, shape: torch.Size, dtype: torch.dtype) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes  # whole pages
        self.shape = shape
        self.dtype = dtype

    def values(self) -> torch.Tensor:
        return self.block.tensor(self.offset, self.shape, self.dtype)

    def forget_writes(self) -> None:
        self.block.forget_writes(self.offset, self.nbytes)


_host: tuple[_C.Group, _C.Group] | None = None


def _host_group() -> _C.Group:
    global _host
    world = world_group()
    if _host is None or _host[0] is not world:
        _host = (world, world.split_by_host())
    return _host[1]


def placed(parameter: Any) -> Placed | None:
    return getattr(parameter, "_zerotorch_placed", None)


def place(parameters: list[torch.nn.Parameter], dtype: torch.dtype | None) -> None:
    """Gives these the first rank's values, in memory that ranks of a host share. *Collective.*"""
    fresh = [p for p in dict.fromkeys(parameters) if placed(p) is None and p.device.type == "cpu"]
    if not fresh:
        return
    world = world_group()
    kinds = [dtype if dtype is not None and p.is_floating_point() else p.dtype for p in fresh]
    sizes = [_pages(p.numel() * kind.itemsize) for p, kind in zip(fresh, kinds, strict=True)]
    block = Block(max(sum(sizes), mmap.PAGESIZE))
    offset = 0
    for parameter, kind, size in zip(fresh, kinds, sizes, strict=True):
        values = block.tensor(offset, parameter.shape, kind)
        with torch.no_grad():
            if block.spans_hosts:
                mine = parameter.data.to(kind).contiguous()
                world.broadcast(mine, 0)
                if block.is_first:
                    values.copy_(mine)
            elif block.is_first:
                values.copy_(parameter.data)
            parameter.data = values
        parameter._zerotorch_placed = Placed(block, offset, size, parameter.shape, kind)  # type: ignore[attr-defined]
        marks.mark(parameter, world.size)
        offset += size
    block.host.barrier()  # the first rank has written
    _C.empty_cache()  # where the values were


def meet() -> None:
    """Waits for the ranks of this host. *Collective.*"""
    _host_group().barrier()


def _put_back(parameter: torch.nn.Parameter, keep: bool) -> None:
    """Where the program has given it other memory: into the block again, with its values if `keep`. Local."""
    place_of = placed(parameter)
    assert place_of is not None
    now, values = parameter.data, place_of.values()
    if now.numel() == 0 or now.data_ptr() == values.data_ptr():
        return
    if now.shape != values.shape:
        raise UsageError(
            f"GatheredParameters: a parameter of shape {tuple(values.shape)} was given data of {tuple(now.shape)}"
        )
    if keep:
        values.copy_(now)
    parameter.data = values


def spread(parameters: list[torch.nn.Parameter], root: int | None) -> None:
    """All ranks see what `root` has written into these, or assigned to their data, which are of zero.Init; None: what
    the first rank has. *Collective.*"""
    world = world_group()
    host = _host_group()
    for parameter in parameters:
        _put_back(parameter, keep=world.rank == root)
    if root is not None and (world.size > host.size or root != 0):
        for parameter in parameters:
            values = parameter.data.contiguous().clone()
            world.broadcast(values, root)
            if host.rank == 0:
                parameter.data.copy_(values)
    host.barrier()
    for parameter in parameters:
        place_of = placed(parameter)
        assert place_of is not None
        place_of.forget_writes()
    host.barrier()  # nobody writes again before all see it


class Kept:
    """Values of an engine's parameters that outlive it, once per host. A parameter gets them back by give_back()."""

    def __init__(self, parameters: list[torch.nn.Parameter], block: Block, places: list[Placed]) -> None:
        self._parameters = parameters
        self._block = block
        self._places = places

    def give_back(self) -> None:
        """When the engine has ended. *Collective.*"""
        self._block.host.barrier()  # the first rank has written
        for parameter, place_of in zip(self._parameters, self._places, strict=True):
            parameter.data = place_of.values()
            parameter._zerotorch_placed = place_of  # type: ignore[attr-defined]


def keep(core: _C.Engine, parameters: list[torch.nn.Parameter]) -> Kept:
    """Gathers parameters of which each rank has a shard, one at a time. *Collective.*"""
    sizes = [_pages(p.numel() * p.element_size()) for p in parameters]
    block = Block(max(sum(sizes), mmap.PAGESIZE))
    places = []
    offset = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        place_of = Placed(block, offset, size, parameter.shape, parameter.dtype)
        scope = _C.Gathered(core, [parameter], None)
        if block.is_first:
            place_of.values().copy_(parameter.detach())
        scope.close()
        places.append(place_of)
        offset += size
    return Kept(parameters, block, places)


def finish(model: torch.nn.Module) -> None:
    """Before an engine takes the parameters: every rank has the first rank's values. *Collective* where there are some
    of zero.Init."""
    mine = [parameter for parameter in model.parameters() if placed(parameter) is not None]
    if not mine:
        return
    spread(mine, 0)
    for parameter in mine:
        del parameter._zerotorch_placed  # type: ignore[attr-defined]


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def flush() -> None:
    """What open contexts have built so far moves. *Collective.*"""
    for context in _active:
        context.flush()


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """What is built inside is not partitioned, whatever zero.Init is open around it. Local."""
    open_ones = list(_active)
    for context in reversed(open_ones):
        context.pause()
    try:
        yield
    finally:
        for context in open_ones:
            context.resume()
