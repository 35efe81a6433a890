"""`deepspeed.runtime.zero.utils`. Functions are local unless they say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zerotorch.core.log import warning_once
from zerotorch.errors import UsageError, ZeroError

from ... import comm
from ...ops.optimizers import DeepSpeedCPUAdagrad, DeepSpeedCPUAdam, DeepSpeedCPULion, FusedAdam, FusedLion

ZeRORuntimeException = ZeroError

ZERO_SUPPORTED_OPTIMIZERS: list[type] = [
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad),
    *(FusedAdam, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion, FusedLion),
]


def is_zero_supported_optimizer(optimizer: Any) -> bool:
    """Whether DeepSpeed takes an optimizer of this class without zero_allow_untested_optimizer."""
    return type(optimizer) in ZERO_SUPPORTED_OPTIMIZERS


def is_zero_param(parameter: Any) -> bool:
    """Whether a tensor is a parameter that stage 3 shards."""
    return isinstance(parameter, torch.Tensor) and hasattr(parameter, "ds_id")


def get_lst_from_rank0(lst: list[int]) -> list[int]:
    """Rank 0's list, of which all have one of this length. *Collective.*"""
    values = torch.tensor(lst if comm.get_rank() == 0 else [-1] * len(lst), dtype=torch.int64)
    comm.broadcast(values, 0)
    return [int(value) for value in values]


def assert_lst_len_same_as_other_ranks(lst: list[int]) -> None:
    """Raises ZeroError where rank 0's list has another length. *Collective.*"""
    if get_lst_from_rank0([len(lst)]) != [len(lst)]:
        raise ZeroError(f"rank {comm.get_rank()} has a list of {len(lst)} and rank 0 one of another length")


def assert_ints_same_as_other_ranks(ints: list[int]) -> None:
    """Raises ZeroError where rank 0's list is another. *Collective.*"""
    first = get_lst_from_rank0(ints)
    if ints != first:
        raise ZeroError(f"disagreement between rank {comm.get_rank()} and rank 0: rank 0: {first}, here: {ints}")


def is_builtin_type(obj: Any) -> bool:
    """Whether the class of an object is one of Python's own."""
    return type(obj).__module__ in ("__builtin__", "builtins")


def isinstance_namedtuple(obj: object) -> bool:
    """Whether this is a tuple with names."""
    return isinstance(obj, tuple) and hasattr(obj, "_asdict") and hasattr(obj, "_fields")


def apply_to_tensors_only(function: Callable[[torch.Tensor], Any], value: Any, warning_msg_fn: Any = None) -> Any:
    """`value` with `function` of each tensor inside of its lists, tuples and dictionaries in the tensor's place."""
    if isinstance_namedtuple(value):
        return type(value)(*(apply_to_tensors_only(function, one, warning_msg_fn) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)([apply_to_tensors_only(function, one, warning_msg_fn) for one in value])
    if isinstance(value, dict):
        for key in value:  # dictionaries are kept, as libraries hand on classes of their own
            value[key] = apply_to_tensors_only(function, value[key], warning_msg_fn)
        return value
    if isinstance(value, torch.Tensor):
        return function(value)
    if warning_msg_fn is not None and not is_builtin_type(value):
        warning_once(warning_msg_fn(value))
    return value


def defragment(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One flat tensor with the values of these, which become views of it. Raises UsageError for different dtypes."""
    if len({(tensor.dtype, tensor.device) for tensor in tensors}) != 1:
        raise UsageError("defragment() needs tensors of one dtype on one device")
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.data = part.view_as(tensor)
    return flat
