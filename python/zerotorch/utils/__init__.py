"""`deepspeed.utils`: reading and writing what the engine holds of a parameter, the fp32 weight, gradient and optimizer
states; and by `_tables` what programs find here of other modules.

The "full" functions are collective at stages 1 to 3: all ranks call them for the same parameters in the same order.
They give and take fp32 tensors of the parameter's shape. The "local" ones are for stage 3 and give this rank's part,
flat, in fp32, in the order of the parameter's memory. Those that set it are collective, too, which DeepSpeed's are not:
all ranks call them, each with its part. Gradients are there between backward and step.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from zerotorch.core.log import log_dist as log_dist
from zerotorch.core.log import log_dist_once as log_dist_once
from zerotorch.core.log import logger as logger
from zerotorch.core.log import set_log_level_from_string as set_log_level_from_string
from zerotorch.errors import UsageError

from .._modules import attach, members


def safe_get_full_fp32_param(param: Parameter) -> Tensor | None:
    """The fp32 weight; None where no engine trains the parameter, as a frozen one. Collective."""
    engine = _engine_of(param)
    return None if engine is None or not param.requires_grad else _optional(engine._full_weight(param))


def safe_set_full_fp32_param(param: Parameter, value: Tensor) -> None:
    """Sets the fp32 weight, and the parameter to it. Raises UsageError where no engine trains it. Collective."""
    _required_engine_of(param)._set_full_weight(param, value)


def safe_get_full_grad(param: Parameter) -> Tensor | None:
    """The gradient, averaged over ranks and without loss scale; `param.grad` where no engine trains the parameter.

    None where it has none: frozen, not used, or after step. Collective.
    """
    engine = _engine_of(param)
    return param.grad if engine is None else _optional(engine._full_gradient(param))


def safe_set_full_grad(param: Parameter, value: Tensor) -> None:
    """Sets the gradient. Raises UsageError where the parameter has none. Collective."""
    engine = _engine_of(param)
    if engine is not None:
        engine._set_full_gradient(param, value)
    elif param.grad is not None:
        param.grad.copy_(value)
    else:
        raise UsageError("the parameter has neither an engine that trains it nor a gradient")


def safe_update_full_grad_vectorized(
    param_list: Iterable[Parameter],
    update_func: Callable[[Tensor | None, Parameter], Tensor],
) -> None:
    """Sets the gradient of each trainable parameter to `update_func(gradient, parameter)`. Collective."""
    for param in param_list:
        if param.requires_grad:
            safe_set_full_grad(param, update_func(safe_get_full_grad(param), param))


def safe_get_full_optimizer_state(param: Parameter, optim_state_key: str) -> Tensor | None:
    """A state, such as "exp_avg", in fp32; None where no engine trains the parameter. Collective."""
    engine = _engine_of(param)
    return None if engine is None else _optional(engine._full_optimizer_state(param, optim_state_key))


def safe_set_full_optimizer_state(param: Parameter, value: Tensor, optim_state_key: str) -> None:
    """Sets a state, such as "exp_avg". Raises UsageError where no engine trains the parameter. Collective."""
    _required_engine_of(param)._set_full_optimizer_state(param, optim_state_key, value)


def safe_get_local_fp32_param(param: Parameter) -> Tensor | None:
    """This rank's part of the fp32 weight. Raises UsageError below stage 3. Local."""
    return _optional(_stage_3_engine_of(param)._local_fp32(param))


def safe_set_local_fp32_param(param: Parameter, value: Tensor) -> None:
    """Sets all ranks' parts of the fp32 weight. Raises UsageError below stage 3. Collective."""
    _stage_3_engine_of(param)._set_local_fp32(param, value)


def safe_get_local_grad(param: Parameter) -> Tensor | None:
    """This rank's part of the gradient. Raises UsageError below stage 3. Collective."""
    return _optional(_stage_3_engine_of(param)._local_gradient(param))


def safe_set_local_grad(param: Parameter, value: Tensor) -> None:
    """Sets all ranks' parts of the gradient. Raises UsageError below stage 3. Collective."""
    _stage_3_engine_of(param)._set_local_gradient(param, value)


def safe_get_local_optimizer_state(param: Parameter, optim_state_key: str) -> Tensor | None:
    """This rank's part of a state, such as "exp_avg". Raises UsageError below stage 3. Local."""
    return _optional(_stage_3_engine_of(param)._local_optimizer_state(param, optim_state_key))


def safe_set_local_optimizer_state(param: Parameter, value: Tensor, optim_state_key: str) -> None:
    """Sets all ranks' parts of a state, such as "exp_avg". Raises UsageError below stage 3. Collective."""
    _stage_3_engine_of(param)._set_local_optimizer_state(param, optim_state_key, value)


def get_full_hp_param(param: Parameter, optim_state_key: str | None = None) -> Tensor | None:
    """The fp32 weight, or the state of that name. Collective."""
    if optim_state_key is None:
        return safe_get_full_fp32_param(param)
    return safe_get_full_optimizer_state(param, optim_state_key)


def set_full_hp_param(param: Parameter, value: Tensor, optim_state_key: str | None = None) -> None:
    """Sets the fp32 weight, or the state of that name. Collective."""
    if optim_state_key is None:
        safe_set_full_fp32_param(param, value)
    else:
        safe_set_full_optimizer_state(param, value, optim_state_key)


get_full_hp_grad = safe_get_full_grad
set_full_hp_grad = safe_set_full_grad


def _engine_of(param: Parameter) -> Any:
    reference = getattr(param, "_zerotorch_engine", None)
    return None if reference is None else reference()


def _required_engine_of(param: Parameter) -> Any:
    engine = _engine_of(param)
    if engine is None:
        raise UsageError("no engine trains the parameter")
    return engine


def _stage_3_engine_of(param: Parameter) -> Any:
    if not hasattr(param, "ds_id"):
        raise UsageError("parts of a parameter are defined for ZeRO-3 partitioned parameters only")
    return _required_engine_of(param)


def _optional(value: Any) -> Tensor | None:
    assert value is None or isinstance(value, Tensor)
    return value


__getattr__, __dir__ = attach(__name__)

_OWN = [name for name in vars() if name.startswith(("get_full", "log", "safe_", "set_"))]
__all__ = [*_OWN, *members[__name__]]  # noqa: PLE0604
