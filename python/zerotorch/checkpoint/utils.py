"""`deepspeed.checkpoint.utils`."""

from typing import Any

import torch

from .._lazy import attach


def clone_tensors_for_torch_save(item: Any, device: str | torch.device = "cpu") -> Any:
    """A copy of `item` whose tensors, also inside of lists, tuples and dictionaries, have storages of their own.

    torch.save writes whole storages, so a view would take along all that it is a view of. Tensors come to `device`,
    without gradients; other values are not copied. Local.
    """
    if isinstance(item, torch.Tensor):
        return item.detach().to(device, copy=True).contiguous()
    if isinstance(item, (list, tuple)):
        return type(item)([clone_tensors_for_torch_save(one, device) for one in item])
    if isinstance(item, dict):
        return type(item)({key: clone_tensors_for_torch_save(value, device) for key, value in item.items()})
    return item


__getattr__, __dir__ = attach(__name__)
