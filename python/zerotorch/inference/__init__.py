"""`deepspeed.inference`, which is not built."""

from .config import DeepSpeedInferenceConfig
from .engine import InferenceEngine, init_inference

__all__ = ["DeepSpeedInferenceConfig", "InferenceEngine", "init_inference"]
