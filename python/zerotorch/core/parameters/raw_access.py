"""Accesses to parameters of an engine that go past torch's operators."""

from __future__ import annotations

import functools
from typing import Any

import torch

from zerotorch import _C

#: Where memory begins that has parameters which this rank may write now.
writable: set[int] = set()


def memory_of(tensor: torch.Tensor) -> int:
    """Where a tensor's storage begins."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _is_writable(tensor: torch.Tensor) -> bool:
    """Whether what this rank writes into a parameter's memory becomes its value."""
    try:
        return bool(writable) and memory_of(tensor) in writable
    except RuntimeError:  # it is not there now
        return False


def _numpy(original: Any) -> Any:
    @functools.wraps(original)
    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if not _C.belongs_to_engine(self) or self.requires_grad and not force:
            return original(self, force=force)
        if _is_writable(self):
            return original(self, force=force)
        # The memory of a parameter comes and goes, and other ranks may read it.
        array = original(self.detach().clone(), force=force)
        array.flags.writeable = False
        return array

    return numpy


def _dlpack(original: Any) -> Any:
    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _C.belongs_to_engine(self) or self.requires_grad or _is_writable(self):
            return original(self, *args, **kwargs)
        return original(self.detach().clone(), *args, **kwargs)

    return dlpack


def _like_plain(name: str, original: Any) -> Any:
    """For makers of tensors that ask what kind a tensor is and do not know the one by which uses are seen."""

    @functools.wraps(original)
    def make(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            if "correspond to a device" not in str(error):
                raise
        return getattr(torch.empty(0, dtype=self.dtype, device=self.device), name)(*args, **kwargs)

    return make


@functools.cache
def install() -> None:
    """From here on accesses that would go past the engine to a parameter's memory get a copy. Local."""
    for name in ("new", "new_tensor"):
        setattr(torch.Tensor, name, _like_plain(name, getattr(torch.Tensor, name)))
    torch.Tensor.numpy = _numpy(torch.Tensor.numpy)  # type: ignore[method-assign]
    torch.Tensor.__dlpack__ = _dlpack(torch.Tensor.__dlpack__)  # type: ignore[method-assign]
