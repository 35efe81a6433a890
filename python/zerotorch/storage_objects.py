"""Python objects of storages, which stay for as long as the memory does.

torch keeps a storage's Python object once somebody has asked for it, as loaders of files do, and it is one more reference
to the memory. The engine counts references to find tensors that share a parameter's memory, and would take it for one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable

import torch

_OF_NOBODY = 4  # references to an object that C++ keeps: its own, two of our loop and that of getrefcount()


def leave_behind(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Moves parameters away from storages whose Python object nobody holds any more. Those whose memory somebody else
    has as well, and that another parameter has, stay where they are. Local."""
    by_memory: dict[int, list[torch.nn.Parameter]] = {}
    for parameter in dict.fromkeys(parameters):
        if parameter.device.type == "cpu" and parameter.layout == torch.strided and parameter.numel() > 0:
            begin = parameter.data_ptr() - int(parameter.storage_offset()) * parameter.element_size()
            by_memory.setdefault(begin, []).append(parameter)
    alone = []
    for storage in gc.get_objects():
        if type(storage) is torch.UntypedStorage and storage.device.type == "cpu":
            inside = by_memory.get(storage.data_ptr(), [])
            if inside and sys.getrefcount(storage) <= _OF_NOBODY and _has_only(storage, inside):
                alone.extend(inside)
    with torch.no_grad():
        for parameter in alone:
            parameter.data = parameter.data.clone()


def _has_only(storage: torch.UntypedStorage, parameters: list[torch.nn.Parameter]) -> bool:
    """Whether these are all that have the memory, each a part of its own."""
    references: int = torch._C._storage_Use_Count(storage._cdata)
    if references != len(parameters) + 1 or any(parameter._is_view() for parameter in parameters):
        return False
    end = 0
    for parameter in sorted(parameters, key=torch.Tensor.data_ptr):
        if parameter.data_ptr() < end:
            return False
        end = parameter.data_ptr() + parameter.element_size() * (1 + _last(parameter))
    return True


def _last(tensor: torch.Tensor) -> int:
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
