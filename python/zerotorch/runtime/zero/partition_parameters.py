"""`deepspeed.runtime.zero.partition_parameters`: the names that libraries read there and assign to.

`zero.Init` changes no constructors of torch, so what is assigned to `zero_wrapper_for_fp_tensor_constructor` is never
called.
"""

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zerotorch.core.parameters.gathered import GatheredParameters
from zerotorch.core.parameters.marks import ZeroParamStatus
from zerotorch.core.ranks import rank

from ..._modules import attach
from ...accelerator import get_accelerator

__all__ = ["ZeroParamStatus", "ZeroParamType", "get_accelerator", "zero_wrapper_for_fp_tensor_constructor"]

_orig_torch_tensor = torch.tensor
_orig_torch_empty = torch.empty
_orig_torch_zeros = torch.zeros
_orig_torch_ones = torch.ones
_orig_torch_full = torch.full
_orig_torch_arange = torch.arange
_orig_torch_eye = torch.eye
_orig_torch_randn = torch.randn


class ZeroParamType(enum.Enum):
    """How a parameter is kept."""

    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., torch.Tensor], target_fp_dtype: torch.dtype | None, target_device: torch.device | None
) -> Callable[..., torch.Tensor]:
    """`fn` with another default device, and another dtype for floating-point tensors. Local."""

    def construct(*args: object, **kwargs: object) -> torch.Tensor:
        if kwargs.get("device") is None and target_device is not None:
            kwargs["device"] = target_device
        made = fn(*args, **kwargs)
        return made.to(target_fp_dtype) if target_fp_dtype is not None and made.is_floating_point() else made

    return construct


def print_rank_0(message: object, debug: bool = False, force: bool = False) -> None:
    """With `debug` or `force`, prints on rank 0. Local."""
    if (debug or force) and rank() == 0:
        print(message)


def shutdown_init_context() -> None:
    """Nothing: `zero.Init` changes nothing outside of its context. Local."""


restore_init_context = shutdown_init_context


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """A context in which all parameters of a model are gathered. Collective."""
    with GatheredParameters(model.parameters()):
        yield model


__getattr__, __dir__ = attach(__name__)
