"""Where the states of an engine are. Everything is local."""

from typing import Any

import torch

from .offload_config import OffloadStateTypeEnum


def get_state_devices(model: Any, state: OffloadStateTypeEnum) -> set[torch.device]:
    """The devices of one kind of an engine's states: where the configuration puts them, before and after
    `offload_states()`, except that states on a GPU are reported on the CPU while they are offloaded."""
    return {model._state_device(OffloadStateTypeEnum(state))}
