"""Parameters that exist in parts: zero.Init, zero.GatheredParameters, and estimates of memory."""

from __future__ import annotations

from typing import Any

from zerotorch.zero.gathered import GatheredParameters
from zerotorch.zero.init import Init

__all__ = [
    "GatheredParameters",
    "Init",
    "TiledLinear",
    "register_external_parameter",
    "unregister_external_parameter",
]


def register_external_parameter(module: Any, parameter: Any) -> None:
    """Nothing: uses of parameters are seen wherever they are."""


def unregister_external_parameter(module: Any, parameter: Any) -> None:
    """Nothing, as register_external_parameter()."""


def __getattr__(name: str) -> Any:
    if name == "TiledLinear":
        from zerotorch.errors import NotBuiltError

        raise NotBuiltError("zero.TiledLinear is not built: use torch.nn.Linear")
    if name.startswith("estimate_zero"):
        from zerotorch.runtime.zero import memory_estimates

        return getattr(memory_estimates, name)
    raise AttributeError(f"module 'zerotorch.zero' has no attribute '{name}'")
