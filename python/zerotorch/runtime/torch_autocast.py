"""Questions about `torch_autocast`. Everything is local."""

from typing import Any

import torch

PARAM_COMM_DTYPE_ATTR_NAME = "comm_dtype"

LOWER_PRECISION_SAFE_MODULES = [torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d]


def has_comm_dtype(param: torch.nn.Parameter) -> bool:
    """Whether a parameter has a dtype of its own for communication."""
    return hasattr(param, PARAM_COMM_DTYPE_ATTR_NAME)


def get_comm_dtype(param: torch.nn.Parameter) -> Any:
    """The dtype in which a parameter is communicated: its own where none was given."""
    return getattr(param, PARAM_COMM_DTYPE_ATTR_NAME, param.dtype)


def get_default_autocast_lower_precision_modules() -> list[str]:
    """Full names of the classes that DeepSpeed casts."""
    return [f"{one.__module__}.{one.__name__}" for one in LOWER_PRECISION_SAFE_MODULES]
