"""For isinstance: DeepSpeed's optimizer of fp16 without ZeRO. The engine's has other classes."""

from ..base_optimizer import DeepSpeedOptimizer


class FP16_Optimizer(DeepSpeedOptimizer):  # noqa: N801  # DeepSpeed's name
    """Nothing is one."""
