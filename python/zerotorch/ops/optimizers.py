"""DeepSpeed's optimizers, and AdEMAMix.

Given to `initialize`, the engine takes over their class and groups and updates the shards itself; their `step` is for
programs that use them alone. Adam, AdamW and Adagrad have the numbers of torch.optim's.
"""

import abc
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from zerotorch.errors import UsageError

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

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return param.dtype

    def _refuse_sparse(self, grad: torch.Tensor) -> None:
        if grad.is_sparse:
            raise UsageError(f"{type(self).__name__} takes no sparse gradients")


class _Fp32States(EngineOptimizer):
    """Optimizers whose states are fp32 unless they are told otherwise."""

    fp32_optimizer_states: bool

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        # The engine has a way of its own to keep states in 16 bits, and says so.
        params = super().zerotorch_params(group)  # type: ignore[safe-super]
        return params if self.fp32_optimizer_states else {**params, "fp32_optimizer_states": False}

    def _state_dtype(self, param: torch.Tensor) -> torch.dtype:
        return torch.promote_types(param.dtype, torch.float32) if self.fp32_optimizer_states else param.dtype


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


class _Adam(EngineOptimizer):
    zerotorch_type = "Adam"
    adam_w_mode: bool

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        return {
            "lr": float(group["lr"]), "betas": list(group["betas"]), "eps": group["eps"],
            "weight_decay": group["weight_decay"], "bias_correction": bool(group["bias_correction"]),
            "adam_w_mode": bool(self.adam_w_mode),
        }

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
        params: Any,
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
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = adam_w_mode
        self.set_grad_none = set_grad_none


class DeepSpeedCPUAdam(_Fp32States, _Adam):
    """AdamW, or with `adamw_mode=False` Adam with L2 decay. States are fp32 unless `fp32_optimizer_states` is false.

    Raises UsageError for `amsgrad` in a group, as DeepSpeed does; torch.optim.AdamW has it.
    """

    def __init__(
        self,
        model_params: Any,
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
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "bias_correction": bias_correction,
            "amsgrad": amsgrad,
        }
        super().__init__(model_params, defaults)
        self.adam_w_mode = adamw_mode
        self.fp32_optimizer_states = fp32_optimizer_states

    def add_param_group(self, param_group: Group) -> None:
        if param_group.get("amsgrad", self.defaults["amsgrad"]):
            raise UsageError("DeepSpeedCPUAdam has no amsgrad; torch.optim.AdamW has")
        super().add_param_group(param_group)


class DeepSpeedCPUAdagrad(_Fp32States):
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
            state.update(step=0, exp_avg_sq=torch.zeros_like(param, dtype=self._state_dtype(param)))
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


class _Lion(EngineOptimizer):
    """arXiv 2302.06675: moves by the sign of a momentum, and does not move where that is 0."""

    zerotorch_type = "Lion"

    def zerotorch_params(self, group: Group) -> dict[str, Any]:
        return {"lr": float(group["lr"]), "betas": list(group["betas"]), "weight_decay": group["weight_decay"]}

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


class DeepSpeedCPULion(_Fp32States, _Lion):
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


class FusedLamb(EngineOptimizer):
    """LAMB (arXiv 1904.00962) as DeepSpeed has it: the ratio of norms within bounds, bias correction in the step size.
    States have the parameters' dtype.

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
            "lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm, "max_coeff": max_coeff, "min_coeff": min_coeff,
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
            "lr": float(group["lr"]), "betas": list(group["betas"]), "eps": group["eps"],
            "weight_decay": group["weight_decay"], "bias_correction": bool(group["bias_correction"]),
            "max_coeff": group["max_coeff"], "min_coeff": group["min_coeff"], "eps_inside_sqrt": self.eps_inside_sqrt,
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
            coefficient = _lamb_ratio(weight.norm(), direction.norm(), group["min_coeff"], group["max_coeff"])
            self.lamb_coeffs.append(coefficient)
            weight.sub_(_lamb_step_size(group, state["step"]) * coefficient * direction)

    def _denominator(self, exp_avg_sq: torch.Tensor, eps: float) -> torch.Tensor:
        return (exp_avg_sq + eps).sqrt() if self.eps_inside_sqrt else exp_avg_sq.sqrt() + eps


def _lamb_step_size(group: Group, step: int) -> float:
    lr, (beta1, beta2) = float(group["lr"]), group["betas"]
    return lr * math.sqrt(1 - beta2**step) / (1 - beta1**step) if group["bias_correction"] else lr


def _lamb_ratio(weight: torch.Tensor, step: torch.Tensor, low: float, high: float) -> torch.Tensor:
    bounded = (weight / step).clamp(low, high)
    return torch.where((weight != 0) & (step != 0), bounded, torch.ones_like(bounded))


def _half_life(beta: float) -> float:
    return math.log(0.5) / math.log(beta + 1e-8) - 1


def _mix_schedule(group: Group, step: int) -> tuple[float, float]:
    """alpha and beta3 of an update, the first of which is 1."""
    (beta1, _, beta3), alpha = group["betas"], group["alpha"]
    if step < (group["t_alpha"] or 0):
        alpha *= step / group["t_alpha"]
    if step < (group["t_beta3"] or 0):
        done = step / group["t_beta3"]
        beta3 = 0.5 ** (1 / ((1 - done) * _half_life(beta1) + done * _half_life(beta3) + 1))
    return alpha, beta3


class AdEMAMix(EngineOptimizer):
    """AdEMAMix (arXiv 2409.03137), AdamW with a second, slow average of gradients, with decoupled decay: the numbers of
    its authors' code, and arguments called as in bitsandbytes. States are fp32.

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
        alpha, beta3 = _mix_schedule(group, state["step"])
        with at_least_fp32(param) as (weight,):
            grad = grad.to(weight.dtype)
            fast = state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
            slow = state["exp_avg_slow"].mul_(beta3).add_(grad, alpha=1 - beta3)
            squares = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            denominator = (squares / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
            direction = (fast / (1 - beta1 ** state["step"])).add_(slow, alpha=alpha)
            weight.mul_(1 - lr * group["weight_decay"]).addcdiv_(direction, denominator, value=-lr)
