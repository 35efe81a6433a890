"""AdEMAMix (arXiv 2409.03137), AdamW with a second, slow average of gradients: the numbers of its authors' code, and
arguments called as in bitsandbytes."""

import math
from typing import Any

import torch

from .optimizer import EngineOptimizer, Group, State, at_least_fp32


def _half_life(beta: float) -> float:
    return math.log(0.5) / math.log(beta + 1e-8) - 1


def _schedule(group: Group, step: int) -> tuple[float, float]:
    """alpha and beta3 of an update, the first of which is 1."""
    (beta1, _, beta3), alpha = group["betas"], group["alpha"]
    if step < (group["t_alpha"] or 0):
        alpha *= step / group["t_alpha"]
    if step < (group["t_beta3"] or 0):
        done = step / group["t_beta3"]
        beta3 = 0.5 ** (1 / ((1 - done) * _half_life(beta1) + done * _half_life(beta3) + 1))
    return alpha, beta3


class AdEMAMix(EngineOptimizer):
    """AdEMAMix with decoupled decay. States are fp32.

    Args:
        betas: decay of the fast average, of the squares, and of the slow average.
        alpha: weight of the slow average.
        t_alpha: steps in which alpha grows from 0 to its value; None: none.
        t_beta3: steps in which the third beta grows from the first to its value; None: none.
    """

    zerotorch_type = "AdEMAMix"

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 5.0,
        t_alpha: int | None = None,
        t_beta3: int | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "alpha": alpha, "t_alpha": t_alpha, "t_beta3": t_beta3}
        super().__init__(params, {**defaults, "eps": eps, "weight_decay": weight_decay})

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        steps = {key: group[key] or 0 for key in ("t_alpha", "t_beta3")}
        numbers = {key: group[key] for key in ("alpha", "eps", "weight_decay")}
        return {"lr": float(group["lr"]), "betas": list(group["betas"]), **steps, **numbers}

    def _update(self, group: Group, param: torch.Tensor, grad: torch.Tensor, state: State) -> None:
        self._refuse_sparse(grad)
        if not state:
            dtype = torch.promote_types(param.dtype, torch.float32)
            names = ("exp_avg", "exp_avg_sq", "exp_avg_slow")
            state.update({name: torch.zeros_like(param, dtype=dtype) for name in names}, step=0)
        state["step"] += 1
        lr, (beta1, beta2, _) = float(group["lr"]), group["betas"]
        alpha, beta3 = _schedule(group, state["step"])
        with at_least_fp32(param) as (weight,):
            grad = grad.to(weight.dtype)
            fast = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
            slow = state["exp_avg_slow"].mul_(beta3).add_(grad, alpha=1 - beta3)
            squares = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            denominator = (squares / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
            direction = (fast / (1 - beta1 ** state["step"])).add_(slow, alpha=alpha)
            weight.mul_(1 - lr * group["weight_decay"]).addcdiv_(direction, denominator, value=-lr)
