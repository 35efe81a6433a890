"""Base classes of `engine.optimizer`, for isinstance."""


class DeepSpeedOptimizer:
    """An optimizer that an engine has made."""


class ZeROOptimizer(DeepSpeedOptimizer):
    """An optimizer over sharded states."""
