"""`deepspeed.moe`: what programs ask about experts."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__)
