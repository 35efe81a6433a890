"""What programs take from DeepSpeed's compression for other purposes. Everything is local."""

from typing import Any

import torch

from ..utils.module_utils import recursive_getattr, recursive_setattr

__all__ = ["convert_conv1d_to_linear", "recursive_getattr", "recursive_setattr"]


def convert_conv1d_to_linear(model: torch.nn.Module, convert_type: type[torch.nn.Module]) -> Any:
    """The model, with torch.nn.Linear in the place of modules of `convert_type`, transformers' Conv1D.

    A Conv1D has the transposed weight, `[in, out]`. Returns the model that was given, which is changed: of a model
    that has been wrapped as `.module`, the wrapped one.
    """
    unwrapped = getattr(model, "module", model)
    for name, module in [*unwrapped.named_modules()]:
        if isinstance(module, convert_type):
            recursive_setattr(unwrapped, name, _linear(module))
    return unwrapped


def _linear(conv: Any) -> torch.nn.Linear:
    inputs, outputs = conv.weight.shape
    made = torch.nn.Linear(inputs, outputs, bias=conv.bias is not None, device="meta")
    made.weight = torch.nn.Parameter(conv.weight.detach().t().contiguous(), conv.weight.requires_grad)
    if conv.bias is not None:
        made.bias = conv.bias
    return made
