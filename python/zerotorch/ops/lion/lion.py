"""Lion (arXiv 2302.06675), which moves by the sign of a momentum and does not move where that is 0."""

from typing import Any

import torch

from ..optimizer import EngineOptimizer, Group, State, ZeroGrad, at_least_fp32


class _Lion(EngineOptimizer):
    zerotorch_type = "Lion"

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        return {"lr": float(group["lr"]), "betas": list(group["betas"]), "weight_decay": group["weight_decay"]}

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return param.dtype

    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        self._refuse_sparse(grad)
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(param, dtype=self._state_dtype(param)))
        state["step"] += 1
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        with at_least_fp32(param, state["exp_avg"]) as (weight, exp_avg):
            grad = grad.to(weight.dtype)
            direction = (exp_avg * beta1).add_(grad, alpha=1 - beta1).sign_()
            weight.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
            exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)


class FusedLion(ZeroGrad, _Lion):
    """Lion with decoupled decay. The state has the parameters' dtype."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.set_grad_none = set_grad_none


class DeepSpeedCPULion(_Lion):
    """Lion with decoupled decay. The state is fp32 unless `fp32_optimizer_states` is false."""

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        super().__init__(model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.fp32_optimizer_states = fp32_optimizer_states

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        params = super().zerotorch_params(group)
        return params if self.fp32_optimizer_states else {**params, "fp32_optimizer_states": False}

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return torch.promote_types(param.dtype, torch.float32) if self.fp32_optimizer_states else param.dtype
