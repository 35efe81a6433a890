"""`deepspeed.checkpoint.universal_checkpoint`. Every checkpoint here is universal: it loads on any number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from .._lazy import attach


@dataclasses.dataclass
class SubparamShape:
    """Of a parameter that is several in one, such as a fused query, key and value: what tensor parallelism splits."""

    patterns: list[str]
    shape: tuple[Any, ...]
    partition_dim: int


def enable_universal_checkpoint(param_list: Iterable[Any]) -> None:
    """Nothing: checkpoints load on any number of ranks as they are. Local."""


__getattr__, __dir__ = attach(__name__)
