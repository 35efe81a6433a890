"""Lion under DeepSpeed's names."""

from .lion import DeepSpeedCPULion, FusedLion

__all__ = ["DeepSpeedCPULion", "FusedLion"]
