"""For isinstance: DeepSpeed's optimizer of bf16 with fp32 gradients. The engine's has other classes."""

from .base_optimizer import ZeROOptimizer


class BF16_Optimizer(ZeROOptimizer):  # noqa: N801  # DeepSpeed's name
    """Nothing is one."""
