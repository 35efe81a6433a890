"""`deepspeed.runtime.utils`: what programs call of it."""

import gc
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from zerotorch.core.ranks import rank
from zerotorch.errors import UsageError

from .._modules import attach
from ..accelerator import get_accelerator
from ..comm import ReduceOp, all_reduce

GB = 2**30


def see_memory_usage(message: str, force: bool = False) -> None:
    """With `force`, prints on rank 0 the memory of this process and of the host, in units of 2^30 bytes. Local."""
    if not force or rank() != 0:
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


def copy_to_device(item: Any, device: Any, criterion_func: Callable[[Any], bool]) -> Any:
    """As `move_to_device`, with tensors that are on the device already copied. Local."""
    return move_to_device(item, device, criterion_func)


def noop_decorator(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself. Local."""
    return func


class DummyOptim:
    """An optimizer that has parameters and does nothing."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": params}]


def is_model_parallel_parameter(p: Any) -> bool:
    """Whether a program has marked a parameter as a tensor-parallel part. Local."""
    return bool(getattr(p, "model_parallel", False) or getattr(p, "tensor_model_parallel", False))


def call_to_str(base: str, *args: Any, **kwargs: Any) -> str:
    """ "base(1, two=2)". Local."""
    return f"{base}({', '.join([*map(repr, args), *(f'{key}={value!r}' for key, value in kwargs.items())])})"


def get_only_unique_item(items: Iterable[Any]) -> Any:
    """The one value of all items. Raises UsageError where there are more. Local."""
    unique = set(items)
    if len(unique) != 1:
        raise UsageError(f"expected there to be only one unique element in {items}")
    return unique.pop()


def has_inf_or_nan(x: torch.Tensor) -> torch.Tensor:
    """Whether an element is not finite, as a tensor of one. Local."""
    return ~x.isfinite().all()


def get_weight_norm(parameters: torch.Tensor | Iterable[torch.Tensor], norm_type: float = 2, mpu: Any = None) -> float:
    """The norm of all values; -1 where it is not finite. Local: of what this rank has."""
    listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    flat = [parameter.detach().float().reshape(-1) for parameter in listed]
    total = float(torch.linalg.vector_norm(torch.cat(flat), float(norm_type))) if flat else 0.0
    return total if math.isfinite(total) else -1.0


class CheckOverflow:
    """Whether gradients of a plain module are finite, on all ranks."""

    def __init__(
        self,
        param_groups: Iterable[Iterable[torch.Tensor]] | None = None,
        mpu: Any = None,
        zero_reduce_scatter: bool = False,
        deepspeed: Any = None,
    ) -> None:
        self.params = None if param_groups is None else [one for group in param_groups for one in group]

    def check(self, param_groups: Iterable[Iterable[torch.Tensor]] | None = None) -> bool:
        """*Collective.*"""
        params = self.params if param_groups is None else [one for group in param_groups for one in group]
        if params is None:
            raise UsageError("check() needs param_groups where the constructor got none")
        return self.has_overflow(params)

    def has_overflow(self, params: Iterable[torch.Tensor], has_moe_params: Any = None) -> bool:
        """*Collective.*"""
        return _on_any_rank(self.has_overflow_serial(params))

    def has_overflow_serial(self, params: Iterable[torch.Tensor]) -> bool:
        """On this rank. Local."""
        return any(one.grad is not None and bool(has_inf_or_nan(one.grad)) for one in params)

    def check_using_norm(self, norm_group: Iterable[float], reduce_overflow: bool = True) -> bool:
        """Whether a norm is -1, infinite or no number. *Collective* unless told not to."""
        overflow = any(float(norm) == -1 or not math.isfinite(norm) for norm in norm_group)
        return _on_any_rank(overflow) if reduce_overflow else overflow


def _on_any_rank(value: bool) -> bool:
    there = torch.tensor([float(value)])
    all_reduce(there, ReduceOp.MAX)
    return bool(there.item())


def prefix_sum_inc(weights: Iterable[float]) -> list[float]:
    """The sums of the first one, two, three and so on. Local."""
    return list(itertools.accumulate(weights))


def partition_uniform(num_items: int, num_parts: int) -> list[int]:
    """Where parts begin, with the end: parts of one size, the first of them one larger for what is left. Local."""
    if num_items <= num_parts:
        return [min(part, num_items) for part in range(num_parts + 1)]
    size, left = divmod(num_items, num_parts)
    return [part * size + min(part, left) for part in range(num_parts + 1)]


def partition_balanced(weights: Sequence[float], num_parts: int) -> list[int]:
    """Where parts of consecutive items begin, with the end, so that the heaviest and the lightest differ least. Local."""
    items = len(weights)
    if items <= num_parts:
        return partition_uniform(items, num_parts)
    sums = [0.0, *itertools.accumulate(weights)]
    # Of the first `end` items: (difference, heaviest, lightest, where the last part begins). Of equal differences the
    # last begins latest.
    best: list[tuple[float, float, float, int] | None] = [(0.0, 0.0, math.inf, 0)] + [None] * items
    starts = []
    for part in range(1, num_parts + 1):
        before, best = best, [None] * (items + 1)
        for end in range(part, items + 1):
            for begin in range(end):
                earlier = before[begin]
                if earlier is None:
                    continue
                weight = sums[end] - sums[begin]
                heaviest, lightest = max(earlier[1], weight), min(earlier[2], weight)
                found = best[end]
                if found is None or heaviest - lightest <= found[0]:
                    best[end] = (heaviest - lightest, heaviest, lightest, begin)
        starts.append(best)
    parts = [items]
    for row in reversed(starts):
        found = row[parts[-1]]
        assert found is not None
        parts.append(found[3])
    return parts[::-1]


def get_tensor_bytes(item: Any) -> int:
    """Bytes of the tensors inside of lists, tuples and dictionaries. Local."""
    if isinstance(item, torch.Tensor):
        return item.nbytes
    if isinstance(item, (list, tuple)):
        return sum(map(get_tensor_bytes, item))
    return sum(map(get_tensor_bytes, item.values())) if isinstance(item, dict) else 0


__getattr__, __dir__ = attach(__name__)
