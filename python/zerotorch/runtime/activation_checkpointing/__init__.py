"""`deepspeed.runtime.activation_checkpointing`."""

from ..._lazy import attach

__getattr__, __dir__ = attach(__name__)
