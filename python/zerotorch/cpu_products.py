"""How products of bf16 and fp16 tensors are computed on the CPU.

Most processors have no instructions for them, and libtorch then multiplies 16-bit matrices 10 to 40 times slower than
fp32 ones. An engine with 16-bit parameters on the CPU computes them in fp32 there, and rounds once
(``zerotorch.cpu_products`` in its configuration). This module is for programs without an engine, such as inference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from zerotorch import _C
from zerotorch.errors import ConfigError

__all__ = ["CpuProducts", "Speed", "measure"]

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise ConfigError(f"cpu_products: {dtype}; want torch.bfloat16 or torch.float16")
    return _NAMES[dtype]


class Speed(NamedTuple):
    """Floating-point operations per second: by libtorch's own kernels, and in fp32 (0 for torch.float32)."""

    native: float
    in_fp32: float


def measure(dtype: torch.dtype, edge: int = 128) -> Speed:
    """The speed of products of ``edge`` x ``edge`` matrices of float32, bfloat16 or float16, with this process's threads.

    Local; takes some milliseconds. Raises ConfigError for another dtype.
    """
    return Speed(*_C.measure_cpu_products(_name(dtype), edge))


class CpuProducts:
    """While it is open, products of ``dtypes`` on the CPU of this process are computed one way.

    Args:
        way: "fp32", "native" (libtorch's own kernels) or "auto": native where the processor has instructions for the dtype.
        dtypes: torch.bfloat16, torch.float16 or both.

    Open it around forward and backward. For all threads and all modules of the process; scopes and engines that are open at a time have to agree, and
    ConfigError is raised when they do not. Local.
    """

    def __init__(self, way: str = "auto", *dtypes: torch.dtype) -> None:
        if not isinstance(way, str):
            raise ConfigError(f"cpu_products: {way!r}; want 'auto', 'native' or 'fp32', and then dtypes")
        self._way = way
        self._names = [_name(dtype) for dtype in dtypes or (torch.bfloat16, torch.float16)]
        self._scopes: list[_C.CpuProductsScope] = []

    def __enter__(self) -> dict[str, str]:
        """What was chosen, by dtype: {"bf16": "fp32"}."""
        scopes = [_C.CpuProductsScope(self._way, name) for name in self._names]
        self._scopes += scopes
        return {name: scope.chosen for name, scope in zip(self._names, scopes, strict=True)}

    def __exit__(self, *error: Any) -> None:
        del self._scopes[-len(self._names) :]
