"""Precisions that Python gives a module: `torch_autocast` around its forward, and `data_types.buffer_dtype`."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from zerotorch import _C
from zerotorch.core.distributed import world_group
from zerotorch.core.log import logger
from zerotorch.errors import ConfigError

_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), torch.float32),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), torch.bfloat16),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), torch.float16),
}
_SECTION = "torch_autocast"
_KEYS = ("enabled", "dtype", "lower_precision_safe_modules")


def _dtype_of(value: Any, path: str) -> torch.dtype:
    if isinstance(value, torch.dtype) and value in _DTYPES.values():
        return value
    if not isinstance(value, str) or value not in _DTYPES:
        raise ConfigError(f'{path}: {value!r} is not one of "bf16", "fp16", "fp32"')
    return _DTYPES[value]


def autocast_dtype(raw: dict[str, Any], param_dtype: torch.dtype) -> torch.dtype | None:
    """What `torch_autocast` of a configuration says forward computes in; None: nothing. Raises ConfigError. Local."""
    section = raw.get(_SECTION)
    if section is None:
        return None
    if not isinstance(section, dict):
        raise ConfigError(f"{_SECTION}: {section!r} is not an object")
    for key, value in section.items():
        if key not in _KEYS:
            raise ConfigError(f"{_SECTION}.{key}: is not a known key; there are {', '.join(_KEYS)}")
        if key == "enabled" and not isinstance(value, bool):
            raise ConfigError(f"{_SECTION}.enabled: {value!r} is neither true nor false")
    if not section.get("enabled", False):
        return None
    dtype = _dtype_of(section.get("dtype") or "bf16", f"{_SECTION}.dtype")
    if param_dtype != torch.float32:
        if dtype != param_dtype:
            raise ConfigError(f"{_SECTION}.dtype: {dtype}, and parameters are {param_dtype}: give both the same")
        return dtype
    if dtype != torch.bfloat16:
        raise ConfigError(
            f'{_SECTION}.dtype: want "bfloat16"; fp16 needs a loss scale, which goes with fp16 parameters here: '
            '"fp16": {"enabled": true}'
        )
    return dtype


def cast_buffers(module: torch.nn.Module, raw: dict[str, Any], param_dtype: torch.dtype) -> None:
    """Gives floating-point buffers the dtype of `data_types.buffer_dtype`, where it is given. Local."""
    value = (raw.get("data_types") or {}).get("buffer_dtype")
    if value is None:
        return
    dtype = _dtype_of(value, "data_types.buffer_dtype")
    if param_dtype == torch.float32:
        logger.warning("data_types.buffer_dtype: no effect without bf16 or fp16, as in DeepSpeed")
        return
    for buffer in module.buffers():
        if buffer.dtype in (*_DTYPES.values(), torch.float64) and buffer.dtype != dtype:
            buffer.data = buffer.data.to(dtype)
    if dtype != param_dtype and any(isinstance(one, _NormBase) and one.track_running_stats for one in module.modules()):
        logger.warning(
            "data_types.buffer_dtype: running statistics of BatchNorm and its like become %s all the same, as torch's "
            "kernels want them in the dtype of the weights",
            param_dtype,
        )


class Autocast:
    """`torch_autocast` of an engine: a forward that computes in `dtype` what autocast says, also of fp32 parameters.

    On a CPU without instructions for bf16, products are computed in fp32 and rounded once, as `zerotorch.cpu_products`
    says. Gradients are summed in fp32, whatever `lower_precision_safe_modules` says: in DeepSpeed these are summed in bf16.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, cpu_products: str) -> None:
        """*Collective.*"""
        self._dtype = dtype
        self._type = device.type
        self._products: Any = None
        if self._type == "cpu" and dtype == torch.bfloat16:
            self._products = _C.cpu_products_of_all(cpu_products, "bf16", world_group())

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self._type, self._dtype)

    def end(self) -> None:
        """The engine is gone. Local."""
        self._products = None
