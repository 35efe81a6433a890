"""`deepspeed.pipe`: pipelines, which are not built."""

from ..runtime.pipe import LayerSpec, PipelineModule, TiedLayerSpec

__all__ = ["LayerSpec", "PipelineModule", "TiedLayerSpec"]
