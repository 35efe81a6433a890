"""Models that are never whole on any rank."""

from __future__ import annotations

from types import TracebackType

import torch

from zerotorch import _C
from zerotorch.core.parameters import raw_access
from zerotorch.errors import UsageError

__all__ = ["deferred_init"]


class deferred_init:
    """While it is open, tensors of 64 KiB or more that this thread makes on the CPU take no memory: what is done to them
    in place is recorded, and carried out when an operator first reads them. initialize() does so unit by unit, on the
    first rank, so that no rank ever has the whole model. Values, and the generator afterwards, are those of a model built
    without it, bit for bit. Local.

        with zerotorch.deferred_init():
            model = GPT2LMHeadModel(config)
        engine, *_ = zerotorch.initialize(model=model, config=ds_config)

    Raw access (numpy(), data_ptr(), torch.save) to a tensor that has no memory yet is an error; clone() gives one that
    has. Convert within it (model.to(torch.bfloat16)): afterwards that writes the whole model.

    Args:
        dtype: of floating-point tensors for which the model names none: torch.float32 or torch.bfloat16.
        without_values: draws no random numbers, for a model whose weights are loaded by load_checkpoint(). Until then
            training and saving raise ModelError, which names a parameter.
    """

    def __init__(self, dtype: torch.dtype | None = None, without_values: bool = False) -> None:
        if dtype not in (None, torch.float32, torch.bfloat16):
            raise UsageError(
                f"deferred_init(dtype={dtype}): want torch.float32 or torch.bfloat16; in others initial values overflow or "
                "are not numbers"
            )
        self.dtype = dtype
        self.without_values = without_values
        self._scopes: list[tuple[_C.DeferredInit, torch.dtype]] = []

    def __enter__(self) -> deferred_init:
        raw_access.install()
        self._scopes.append((_C.open_deferred_init(self.without_values), torch.get_default_dtype()))
        if self.dtype is not None:
            torch.set_default_dtype(self.dtype)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, dtype = self._scopes.pop()
        torch.set_default_dtype(dtype)
        del scope
