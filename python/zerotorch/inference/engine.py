"""DeepSpeed's inference engine, which is not built."""

from .._not_built import not_built_class, not_built_function

_FEATURE = "an inference engine"

InferenceEngine = not_built_class("InferenceEngine", _FEATURE)
init_inference = not_built_function("init_inference", _FEATURE)
