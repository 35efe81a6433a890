"""Base classes of `engine.optimizer`, for isinstance."""

from typing import Any


class DeepSpeedOptimizer:
    """An optimizer that an engine has made."""


class ZeROOptimizer(DeepSpeedOptimizer):
    """An optimizer over sharded states."""


class OfStages(type):
    """The type of classes whose instances are the optimizers of engines at some stages."""

    stages: tuple[int, ...] = ()

    def __instancecheck__(cls, instance: Any) -> bool:
        from ..optimizer_names import OptimizerNames

        of_stages = cls.__dict__.get("stages", ())  # a class derived from it is the program's own
        if of_stages and isinstance(instance, OptimizerNames):
            return instance.zero_stage in of_stages
        return super().__instancecheck__(instance)
