"""`deepspeed.runtime.utils`: what programs call of it."""

import gc
import math
import os
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..accelerator import get_accelerator
from ..comm import get_rank
from ..errors import UsageError

GB = 2**30


def see_memory_usage(message: str, force: bool = False) -> None:
    """With `force`, prints on rank 0 the memory of this process and of the host, in units of 2^30 bytes. Local."""
    if not force or get_rank() != 0:
        return
    gc.collect()
    accelerator = get_accelerator()
    now, peak = accelerator.memory_allocated() / GB, accelerator.max_memory_allocated() / GB
    total, free = accelerator.total_memory() / GB, accelerator.available_memory() / GB
    print(message)
    print(f"process: {now:.2f} GB, at most {peak:.2f} GB; host: {total - free:.2f} of {total:.2f} GB used")


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2, mpu: Any = None
) -> torch.Tensor:
    """Scales the gradients of a plain module so that their norm is at most `max_norm`; returns the norm before. Local.

    Raises UsageError for parameters of an engine, which has their gradients: set `gradient_clipping`.
    """
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    if any(hasattr(parameter, "_zerotorch_engine") for parameter in listed):
        raise UsageError("the engine has these parameters' gradients: set gradient_clipping in the configuration")
    return torch.nn.utils.clip_grad_norm_(listed, max_norm, norm_type)


def get_global_norm(norm_list: Iterable[float]) -> float:
    """The 2-norm of the whole from 2-norms of parts; infinity where one is not a finite number of at least 0. Local."""
    norms = [float(norm) for norm in norm_list]
    if any(not math.isfinite(norm) or norm < 0 for norm in norms):
        return math.inf
    return math.hypot(*norms)


def set_random_seed(seed: int) -> None:
    """Seeds random, torch, and numpy where it is installed. Local."""
    random.seed(seed)
    torch.manual_seed(seed % 2**63)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def ensure_directory_exists(filename: str) -> None:
    """Makes the folder of a file. Local."""
    os.makedirs(os.path.dirname(os.path.abspath(filename)), exist_ok=True)


def empty_cache() -> None:
    """Begins to measure peak memory anew. Local."""
    get_accelerator().empty_cache()
    get_accelerator().reset_peak_memory_stats()


def move_to_device(item: Any, device: Any, criterion_func: Callable[[Any], bool] | None = None) -> Any:
    """A copy of `item` with the tensors inside of its lists, tuples and dictionaries on `device`. Local.

    With `criterion_func`, only those that it accepts.
    """
    if isinstance(item, (list, tuple)):
        return type(item)([move_to_device(one, device, criterion_func) for one in item])
    if isinstance(item, dict):
        return {key: move_to_device(value, device, criterion_func) for key, value in item.items()}
    wanted = isinstance(item, torch.Tensor) and (criterion_func is None or criterion_func(item))
    return item.to(device) if wanted else item
