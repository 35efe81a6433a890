"""`deepspeed.ops.aio`."""

from ..op_builder import AsyncIOBuilder

__all__ = ["AsyncIOBuilder"]
