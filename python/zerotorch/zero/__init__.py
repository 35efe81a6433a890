"""Parameters that exist in parts: zero.Init, zero.GatheredParameters, and estimates of memory."""

from __future__ import annotations

import importlib
from typing import Any

from zerotorch.core.parameters.gathered import GatheredParameters
from zerotorch.core.parameters.init import Init

from .._modules import attach

__all__ = [
    "GatheredParameters",
    "Init",
    "register_external_parameter",
    "unregister_external_parameter",
]


def register_external_parameter(module: Any, parameter: Any) -> None:
    """Nothing: uses of parameters are seen wherever they are."""


def unregister_external_parameter(module: Any, parameter: Any) -> None:
    """Nothing, as register_external_parameter()."""


_attribute, _members = attach(__name__)


def __getattr__(name: str) -> Any:
    """Members of `zerotorch.runtime.zero`, which DeepSpeed has under both names."""
    try:
        return _attribute(name)
    except AttributeError:
        if name.startswith("_"):
            raise
    try:
        return getattr(importlib.import_module("zerotorch.runtime.zero"), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*_members(), *dir(importlib.import_module("zerotorch.runtime.zero"))})
