"""`deepspeed.accelerator`: what modules compute on, the CPU or CUDA's GPUs."""

import os
from typing import Any

import torch

from ..errors import ConfigError
from .accelerator import Accelerator
from .cpu_accelerator import CPUAccelerator
from .cuda_accelerator import CUDAAccelerator

__all__ = [
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "get_accelerator",
    "is_current_accelerator_supported",
    "set_accelerator",
]

_accelerator: CPUAccelerator | CUDAAccelerator | None = None


def get_accelerator() -> CPUAccelerator | CUDAAccelerator:
    """The one accelerator of this process: that of the environment's DS_ACCELERATOR ("cpu" or "cuda"), else CUDA's where
    torch finds a GPU, else the CPU. Local.

    Raises:
        ConfigError: DS_ACCELERATOR names another one, or CUDA's without a GPU.
    """
    global _accelerator
    if _accelerator is None:
        wanted = os.environ.get("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        if wanted not in ("cpu", "cuda"):
            raise ConfigError(f"DS_ACCELERATOR is {wanted!r}; there are 'cpu' and 'cuda'")
        if wanted == "cuda" and not torch.cuda.is_available():
            raise ConfigError("DS_ACCELERATOR is 'cuda', and torch finds no GPU; unset it, or set it to 'cpu'")
        _accelerator = CUDAAccelerator() if wanted == "cuda" else CPUAccelerator()
    return _accelerator


def set_accelerator(accel_obj: Any) -> None:
    """From here on get_accelerator() is this object. The engine does not ask it where parameters are. Local."""
    global _accelerator
    _accelerator = accel_obj


def is_current_accelerator_supported() -> bool:
    """True. Local."""
    return True
