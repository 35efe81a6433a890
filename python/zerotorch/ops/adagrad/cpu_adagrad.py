"""Adagrad: the numbers of torch.optim.Adagrad."""

from typing import Any

import torch

from ...errors import UsageError
from ..optimizer import EngineOptimizer, Group, State, at_least_fp32


class DeepSpeedCPUAdagrad(EngineOptimizer):
    """Adagrad with L2 decay. Sums are fp32 unless `fp32_optimizer_states` is false; gradients may be sparse.

    Raises UsageError for `amsgrad`, which Adagrad does not have.
    """

    zerotorch_type = "Adagrad"

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        if amsgrad:
            raise UsageError("Adagrad has no amsgrad")
        super().__init__(model_params, {"lr": lr, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad})
        self.fp32_optimizer_states = fp32_optimizer_states

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        params = {"lr": float(group["lr"]), "eps": group["eps"], "weight_decay": group["weight_decay"]}
        return params if self.fp32_optimizer_states else {**params, "fp32_optimizer_states": False}

    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        if not state:
            wide = torch.promote_types(param.dtype, torch.float32)
            dtype = wide if self.fp32_optimizer_states else param.dtype
            state.update(step=0, exp_avg_sq=torch.zeros_like(param, dtype=dtype))
        state["step"] += 1
        if grad.is_sparse:
            grad = grad.coalesce()
            rows = tuple(grad.indices())
            weights, sums = param[rows], state["exp_avg_sq"][rows]
            self._rule(group, weights, grad.values(), sums)
            param[rows], state["exp_avg_sq"][rows] = weights, sums
        else:
            self._rule(group, param, grad, state["exp_avg_sq"])

    def _rule(self, group: Group, param: torch.Tensor, grad: torch.Tensor, sums: torch.Tensor) -> None:
        with at_least_fp32(param, sums) as (weight, sum_of_squares):
            grad = grad.to(weight.dtype)
            if group["weight_decay"] != 0:
                grad = grad.add(weight, alpha=group["weight_decay"])
            sum_of_squares.addcmul_(grad, grad)
            weight.addcdiv_(grad, sum_of_squares.sqrt().add_(group["eps"]), value=-float(group["lr"]))
