"""`deepspeed.ops`: optimizers, and what is built in. Members are imported when they are first used."""

from .._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    names={
        "__compatible_ops__": "zerotorch.ops.op_builder",
        "DeepSpeedTransformerConfig": "zerotorch.ops.transformer",
        "DeepSpeedTransformerLayer": "zerotorch.ops.transformer",
    },
)
