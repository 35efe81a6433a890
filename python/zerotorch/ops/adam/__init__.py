"""Adam and AdamW under DeepSpeed's names."""

from .adam import DeepSpeedCPUAdam, FusedAdam

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]
