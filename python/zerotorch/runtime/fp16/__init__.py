"""`deepspeed.runtime.fp16`. Members are imported when they are first used."""

from ..._lazy import attach

__getattr__, __dir__ = attach(__name__)
