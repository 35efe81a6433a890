"""For isinstance: DeepSpeed's optimizer of fp16 without ZeRO, for LAMB. The engine's has other classes."""

from ..base_optimizer import DeepSpeedOptimizer


class FP16_UnfusedOptimizer(DeepSpeedOptimizer):  # noqa: N801  # DeepSpeed's name
    """Nothing is one."""
