"""Ranges in NVIDIA's profilers."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..accelerator import get_accelerator

DEEPSPEED_NVTX_DOMAIN = "DeepSpeed"

enable_nvtx = True

P = ParamSpec("P")
R = TypeVar("R")


def instrument_w_nvtx(func: Callable[P, R]) -> Callable[P, R]:
    """The function, each call of which is a range with its name where there is a GPU. Local."""

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if not enable_nvtx:
            return func(*args, **kwargs)
        get_accelerator().range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            get_accelerator().range_pop()

    return wrapped
