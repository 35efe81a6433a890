"""Counting the operations of a module's forward. The engine's own figures are those of `flops_profiler` in its JSON."""

from .profiler import FlopsProfiler, get_model_profile

__all__ = ["FlopsProfiler", "get_model_profile"]
