"""DeepSpeed's fused transformer layers, which are not built."""

from ..._not_built import not_built_class

_FEATURE = "a fused transformer layer"

DeepSpeedTransformerConfig = not_built_class("DeepSpeedTransformerConfig", _FEATURE)
DeepSpeedTransformerLayer = not_built_class("DeepSpeedTransformerLayer", _FEATURE)
