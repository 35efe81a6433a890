"""`deepspeed.runtime.data_pipeline`, of which the schedule of difficulties is built."""

from ..._lazy import attach

__getattr__, __dir__ = attach(__name__)
