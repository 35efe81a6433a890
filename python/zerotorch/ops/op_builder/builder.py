"""`deepspeed.ops.op_builder.builder`. Local."""

from . import OpBuilder

CUDAOpBuilder = OpBuilder
