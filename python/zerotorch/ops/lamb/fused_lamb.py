"""LAMB (arXiv 1904.00962) as DeepSpeed has it: the ratio of norms within bounds, bias correction in the step size."""

import math
from typing import Any

import torch

from ...errors import UsageError
from ..optimizer import EngineOptimizer, Group, State, at_least_fp32


class FusedLamb(EngineOptimizer):
    """LAMB. States have the parameters' dtype.

    Raises UsageError for `amsgrad`, and for a `max_grad_norm`: clip with `gradient_clipping` of the configuration, or
    with torch.nn.utils.clip_grad_norm_.
    """

    zerotorch_type = "Lamb"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if amsgrad:
            raise UsageError("FusedLamb has no amsgrad")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
        }
        super().__init__(params, defaults)
        self.eps_inside_sqrt = eps_inside_sqrt
        self.lamb_coeffs: list[torch.Tensor] = []

    def add_param_group(self, param_group: Group) -> None:
        if param_group.get("max_grad_norm", self.defaults["max_grad_norm"]) > 0:
            raise UsageError("max_grad_norm is not the optimizer's: set gradient_clipping in the configuration")
        super().add_param_group(param_group)

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        return {
            "lr": float(group["lr"]),
            "betas": list(group["betas"]),
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "bias_correction": bool(group["bias_correction"]),
            "max_coeff": group["max_coeff"],
            "min_coeff": group["min_coeff"],
            "eps_inside_sqrt": self.eps_inside_sqrt,
        }

    def step(self, closure: Any = None) -> Any:
        """Updates every parameter that has a gradient. Returns what `closure`, called first, returns. Local."""
        self.lamb_coeffs.clear()
        return super().step(closure)

    def get_lamb_coeffs(self) -> list[float]:
        """The ratio of norms that each parameter's last step was multiplied with. Local."""
        return [coefficient.item() for coefficient in self.lamb_coeffs]

    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        self._refuse_sparse(grad)
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        with at_least_fp32(param, state["exp_avg"], state["exp_avg_sq"]) as (weight, exp_avg, exp_avg_sq):
            grad = grad.to(weight.dtype)
            exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
            exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            direction = exp_avg / self._denominator(exp_avg_sq, group["eps"]) + group["weight_decay"] * weight
            coefficient = _ratio(weight.norm(), direction.norm(), group["min_coeff"], group["max_coeff"])
            self.lamb_coeffs.append(coefficient)
            weight.sub_(_step_size(group, state["step"]) * coefficient * direction)

    def _denominator(self, exp_avg_sq: torch.Tensor, eps: float) -> torch.Tensor:
        return (exp_avg_sq + eps).sqrt() if self.eps_inside_sqrt else exp_avg_sq.sqrt() + eps


def _step_size(group: Group, step: int) -> float:
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    return lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if group["bias_correction"] else lr


def _ratio(weight: torch.Tensor, step: torch.Tensor, low: float, high: float) -> torch.Tensor:
    bounded = (weight / step).clamp(low, high)
    return torch.where((weight != 0) & (step != 0), bounded, torch.ones_like(bounded))
