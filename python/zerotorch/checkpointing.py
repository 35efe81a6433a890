"""`deepspeed.checkpointing`: see `zerotorch.runtime.activation_checkpointing.checkpointing`."""

from typing import Any

from .runtime.activation_checkpointing import checkpointing as _module
from .runtime.activation_checkpointing.checkpointing import *  # noqa: F403


def __getattr__(name: str) -> Any:
    return getattr(_module, name)
