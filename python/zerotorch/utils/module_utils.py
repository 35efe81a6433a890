"""Members of modules by dotted names. Everything is local."""

import functools
from typing import Any

import torch


def recursive_getattr(model: torch.nn.Module, module_name: str) -> Any:
    """The member `module_name`, as "layers.0.weight"; the model itself for ""."""
    return functools.reduce(_member, module_name.split(".") if module_name else [], model)


def recursive_setattr(model: torch.nn.Module, module_name: str, module: Any) -> None:
    """Assigns `module` to the member `module_name`."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent), name, module)


def _member(of: Any, name: str) -> Any:
    return getattr(of, name)
