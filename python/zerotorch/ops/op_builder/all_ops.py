"""`deepspeed.ops.op_builder.all_ops`. Local."""

from . import ALL_OPS as ALL_OPS
