"""The engine of pipelines, which are not built."""

from ..._not_built import not_built_class

_FEATURE = "pipeline parallelism"

PipelineEngine = not_built_class("PipelineEngine", _FEATURE)
