"""Which engine has a parameter."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from zerotorch import _C
from zerotorch.errors import UsageError


class EngineOf:
    """Leads from a parameter to its engine, and to what is left of it where the program has let go of the engine and
    kept its optimizer; a pickled parameter has none."""

    def __init__(self, engine: Any = None) -> None:
        self._reference = None if engine is None else weakref.ref(engine)
        self._core = None if engine is None else weakref.ref(engine._core)

    def __call__(self) -> Any:
        return None if self._reference is None else self._reference()

    def core(self) -> Any:
        return None if self._core is None else self._core()


def engine_of(parameter: torch.Tensor) -> Any:
    """The engine that has a parameter, and was not destroyed; None where there is none. Local.

    Raises UsageError where the program has let go of the engine and kept its optimizer.
    """
    reference = getattr(parameter, "_zerotorch_engine", None)
    if reference is None:
        return None
    engine = reference()
    if engine is None and _C.belongs_to_engine(parameter):
        raise UsageError("the engine of this parameter is gone, and its optimizer is not: keep the engine as well")
    return None if engine is None or engine._core.is_destroyed else engine
