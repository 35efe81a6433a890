"""`deepspeed.module_inject`: replacing layers and tensor parallelism, which are not built."""

from .._not_built import not_built_class, not_built_function

_FEATURE = "tensor parallelism"

LinearAllreduce = not_built_class("LinearAllreduce", _FEATURE)
LinearLayer = not_built_class("LinearLayer", _FEATURE)
ReplaceWithTensorSlicing = not_built_class("ReplaceWithTensorSlicing", _FEATURE)
replace_transformer_layer = not_built_function("replace_transformer_layer", _FEATURE)
revert_transformer_layer = not_built_function("revert_transformer_layer", _FEATURE)
set_autotp_mode = not_built_function("set_autotp_mode", _FEATURE)
tp_model_init = not_built_function("tp_model_init", _FEATURE)
