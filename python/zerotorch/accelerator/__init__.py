"""`deepspeed.accelerator`: what the engine computes on, which is the CPU."""

from .cpu_accelerator import CPUAccelerator

__all__ = ["CPUAccelerator", "get_accelerator", "is_current_accelerator_supported"]

_accelerator = CPUAccelerator()


def get_accelerator() -> CPUAccelerator:
    """The one accelerator of this process. Local."""
    return _accelerator


def is_current_accelerator_supported() -> bool:
    """True. Local."""
    return True
