"""What programs ask about experts of parallel layers, of which there are none. Everything is local."""

from typing import Any

import torch


def is_moe_param(param: torch.Tensor) -> bool:
    """Whether gradients of the parameter stay within expert-parallel ranks: no."""
    return False


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """Whether the model has expert-parallel layers, and how many experts."""
    return False, 0


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    """Whether a group of an optimizer has parameters of expert-parallel layers."""
    return False


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: dict[str, Any] | tuple[dict[str, Any], ...] | list[dict[str, Any]], max_group_size: float = 0
) -> list[dict[str, Any]]:
    """The groups as they are, as a list."""
    return [param_groups] if isinstance(param_groups, dict) else list(param_groups)
