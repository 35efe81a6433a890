"""`deepspeed.profiling`. The engine counts FLOPs by the `flops_profiler` section of its configuration."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__)
