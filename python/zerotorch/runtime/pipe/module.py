"""Pipelines, which are not built."""

from ..._not_built import not_built_class

_FEATURE = "pipeline parallelism"

PipelineModule = not_built_class("PipelineModule", _FEATURE)
LayerSpec = not_built_class("LayerSpec", _FEATURE)
TiedLayerSpec = not_built_class("TiedLayerSpec", _FEATURE)
