"""`deepspeed.monitor`: figures of a run in files."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__)
