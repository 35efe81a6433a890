"""What DeepSpeed's optimizers have in common here.

Given to `initialize`, the engine takes over their class and groups and updates the shards itself; their `step` is for
programs that use them alone.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import UsageError

Group = dict[str, Any]
State = dict[str, Any]


class EngineOptimizer(torch.optim.Optimizer, abc.ABC):
    """A torch optimizer that the engine has as well. `zerotorch_type` is its `optimizer.type` in the configuration."""

    zerotorch_type: str

    @abc.abstractmethod
    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        """`optimizer.params` of the configuration for one of `param_groups`. Local."""

    @abc.abstractmethod
    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        """One update of one parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient. Returns what `closure`, called first, returns. Local."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(group, param, param.grad, self.state[param])
        return loss

    def _refuse_sparse(self, grad: torch.Tensor) -> None:
        if grad.is_sparse:
            raise UsageError(f"{type(self).__name__} takes no sparse gradients")


class ZeroGrad(torch.optim.Optimizer):
    """`zero_grad` of optimizers that are told once whether gradients become None."""

    set_grad_none: bool

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients, or fills them with 0 where the optimizer (or `set_to_none`) says so. Local."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


@contextlib.contextmanager
def at_least_fp32(*tensors: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The tensors in fp32 (fp64 as they are), and what was written to them put back into the originals."""
    wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
    yield wide
    for tensor, written in zip(tensors, wide, strict=True):
        if written is not tensor:
            tensor.copy_(written)
