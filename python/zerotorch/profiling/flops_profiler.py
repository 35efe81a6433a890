"""DeepSpeed's profiler of modules, which is not built."""

from .._not_built import not_built_class, not_built_function

_FEATURE = "a profiler without an engine (flops_profiler of the configuration is)"

FlopsProfiler = not_built_class("FlopsProfiler", _FEATURE)
get_model_profile = not_built_function("get_model_profile", _FEATURE)
