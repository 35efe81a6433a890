"""`deepspeed.comm.torch`: which functions of torch.distributed programs measure. Everything is local."""

from collections.abc import Callable
from typing import Any

from torch import distributed


class TorchBackend:
    """torch.distributed, which `deepspeed.comm` is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.name = "torch"
        self.initialized = distributed.is_available() and distributed.is_initialized()

    @staticmethod
    def get_all_gather_function() -> Callable[..., Any]:
        return distributed.all_gather_into_tensor

    @staticmethod
    def get_reduce_scatter_function() -> Callable[..., Any]:
        return distributed.reduce_scatter_tensor
