"""What of an engine its optimizer, its checkpoints and the engines after it know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from zerotorch.core.config import Config
from zerotorch.core.unmanaged_accumulation import UnmanagedAccumulation
from zerotorch.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from zerotorch import _C

_DESTROYED = (
    "this engine was destroyed, as accelerate's free_memory() does, with which every train() of Hugging Face's Trainer "
    "begins: make a new engine, or a new Trainer"
)
_REPLACED = (
    "this engine was replaced: initialize() was called again with its parameters, and the engine which that call "
    "returned has them now. Use that one"
)


class Life:
    """What the calls of an engine and of its optimizer may still do. Local."""

    def __init__(self) -> None:
        self._ended: str | None = None
        self._half_loaded: str | None = None

    def destroy(self) -> None:
        self._ended = self._ended or _DESTROYED

    def replace(self) -> None:
        self._ended = _REPLACED

    def load_failed(self, why: str) -> None:
        self._half_loaded = why

    def load_succeeded(self) -> None:
        self._half_loaded = None

    def require_alive(self) -> None:
        if self._ended is not None:
            raise UsageError(self._ended)

    def require_trainable(self) -> None:
        """Before whatever trains or saves."""
        self.require_alive()
        if self._half_loaded is not None:
            raise CheckpointError(
                f"load_checkpoint() failed after weights had been replaced ({self._half_loaded}): load a checkpoint "
                "that fits before training or saving, or make a new engine"
            )


class Trained:
    """Base of Engine: its parts."""

    module: torch.nn.Module
    optimizer: Any  #: None for evaluation
    lr_scheduler: Any
    client_state: dict[str, Any]
    _config: Config
    _core: _C.Engine
    _holds_shards_only: bool
    _life: Life
    _names: dict[torch.nn.Parameter, str]
    _unmanaged: UnmanagedAccumulation | None

    def _end_as_replaced(self) -> None:
        """Another engine has the parameters from here on."""
        raise NotImplementedError
