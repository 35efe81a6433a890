"""Constructing a module somewhere else, or nowhere."""

from types import TracebackType

import torch


class OnDevice:
    """A context in which new tensors are made on `device` and floating-point ones have `dtype`.

    With device "meta" a module of any size is built without memory. `enabled=False` changes nothing. Local.
    """

    def __init__(self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self.enabled = enabled

    def __enter__(self) -> None:
        if self.enabled:
            self._previous = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            self.device.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            self.device.__exit__(kind, value, trace)
            torch.set_default_dtype(self._previous)
