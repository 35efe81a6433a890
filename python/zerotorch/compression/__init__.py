"""`deepspeed.compression`, of which the helpers are built."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__)
