"""Settings of DeepSpeed's inference engine, which is not built."""

from .._not_built import not_built_class

_FEATURE = "an inference engine"

DeepSpeedInferenceConfig = not_built_class("DeepSpeedInferenceConfig", _FEATURE)
