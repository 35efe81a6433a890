"""Adam and AdamW under DeepSpeed's names."""

from ..._lazy import attach
from .adam import DeepSpeedCPUAdam, FusedAdam

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]

__getattr__, __dir__ = attach(__name__)
