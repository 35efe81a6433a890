"""Adam and AdamW: the numbers of torch.optim.Adam and AdamW."""

import math
from typing import Any

import torch

from ...errors import UsageError
from ..optimizer import EngineOptimizer, Group, State, ZeroGrad, at_least_fp32

Params = Any  # an iterable of parameters, or of dictionaries of groups


class _Adam(EngineOptimizer):
    zerotorch_type = "Adam"
    adam_w_mode: bool

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        return {
            "lr": float(group["lr"]),
            "betas": list(group["betas"]),
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "bias_correction": bool(group["bias_correction"]),
            "adam_w_mode": bool(self.adam_w_mode),
        }

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return param.dtype

    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        self._refuse_sparse(grad)
        if not state:
            dtype = self._state_dtype(param)
            state.update(step=0, exp_avg=torch.zeros_like(param, dtype=dtype))
            state.update(exp_avg_sq=torch.zeros_like(param, dtype=dtype))
        state["step"] += 1
        with at_least_fp32(param, state["exp_avg"], state["exp_avg_sq"]) as (weight, exp_avg, exp_avg_sq):
            self._rule(group, state["step"], weight, grad.to(weight.dtype), exp_avg, exp_avg_sq)

    def _rule(
        self,
        group: Group,
        step: int,
        weight: torch.Tensor,
        grad: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> None:
        lr, decay, (beta1, beta2) = float(group["lr"]), group["weight_decay"], group["betas"]
        if decay != 0 and self.adam_w_mode:
            weight.mul_(1 - lr * decay)
        elif decay != 0:
            grad = grad.add(weight, alpha=decay)
        exp_avg.lerp_(grad, 1 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1, correction2 = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
        denominator = (exp_avg_sq.sqrt() / math.sqrt(correction2)).add_(group["eps"])
        weight.addcdiv_(exp_avg, denominator, value=-lr / correction1)


class FusedAdam(ZeroGrad, _Adam):
    """AdamW, or with `adam_w_mode=False` Adam with L2 decay. States have the parameters' dtype.

    Raises UsageError for `amsgrad`, as DeepSpeed does; torch.optim.AdamW has it, and the engine takes that one, too.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise UsageError("FusedAdam has no amsgrad; torch.optim.AdamW has")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(_Adam):
    """AdamW, or with `adamw_mode=False` Adam with L2 decay. States are fp32 unless `fp32_optimizer_states` is false.

    Raises UsageError for `amsgrad` in a group, as DeepSpeed does; torch.optim.AdamW has it.
    """

    def __init__(
        self,
        model_params: Params,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "amsgrad": amsgrad,
        }
        super().__init__(model_params, defaults)
        self.adam_w_mode = adamw_mode
        self.fp32_optimizer_states = fp32_optimizer_states

    def add_param_group(self, param_group: Group) -> None:
        if param_group.get("amsgrad", self.defaults["amsgrad"]):
            raise UsageError("DeepSpeedCPUAdam has no amsgrad; torch.optim.AdamW has")
        super().add_param_group(param_group)

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        # Of the configuration, which has the engine's own way to keep states in 16 bits and says so.
        states = {} if self.fp32_optimizer_states else {"fp32_optimizer_states": False}
        return {**super().zerotorch_params(group), **states}

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return torch.promote_types(param.dtype, torch.float32) if self.fp32_optimizer_states else param.dtype
