"""Places of ranks in pipelines, which are not built."""

from ..._not_built import not_built_class

_FEATURE = "pipeline parallelism"

ProcessTopology = not_built_class("ProcessTopology", _FEATURE)
PipeDataParallelTopology = not_built_class("PipeDataParallelTopology", _FEATURE)
PipeModelDataParallelTopology = not_built_class("PipeModelDataParallelTopology", _FEATURE)
PipelineParallelGrid = not_built_class("PipelineParallelGrid", _FEATURE)
