"""`deepspeed.checkpointing`: see `zerotorch.runtime.activation_checkpointing.checkpointing`."""

from .runtime.activation_checkpointing.checkpointing import *  # noqa: F403
