"""The class of `engine.optimizer` under DeepSpeed's names, and DeepSpeed's classes of optimizers for isinstance()."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch

from zerotorch import _C
from zerotorch.core.optimizer import ZeroOptimizer as _ZeroOptimizer
from zerotorch.errors import UsageError

from ..ops.optimizers import DeepSpeedCPUAdagrad, DeepSpeedCPUAdam, DeepSpeedCPULion, FusedAdam, FusedLamb, FusedLion
from .fp16.loss_scaler import LossScalerBase


class DeepSpeedOptimizer:
    """An optimizer that an engine has made."""


class ZeROOptimizer(DeepSpeedOptimizer):
    """An optimizer over sharded states."""


class BF16_Optimizer(ZeROOptimizer):  # noqa: N801  # DeepSpeed's name, as the next ones
    """Nothing is one, nor one of the next two: the engine's have other classes."""


class FP16_Optimizer(DeepSpeedOptimizer):  # noqa: N801
    """Nothing is one."""


class FP16_UnfusedOptimizer(DeepSpeedOptimizer):  # noqa: N801
    """Nothing is one."""


class _OfStages(type):
    """The type of classes whose instances are the optimizers of engines at some stages."""

    def __instancecheck__(cls, instance: Any) -> bool:
        of_stages = cls.__dict__.get("stages", ())  # a class derived from it is the program's own
        if of_stages and isinstance(instance, ZeroOptimizer):
            return instance.zero_stage in of_stages
        return super().__instancecheck__(instance)


class DeepSpeedZeroOptimizer(ZeROOptimizer, metaclass=_OfStages):
    """For isinstance: `engine.optimizer` at stages 1 and 2."""

    stages = (1, 2)


class DeepSpeedZeroOptimizer_Stage3(ZeROOptimizer, metaclass=_OfStages):  # noqa: N801
    """For isinstance: `engine.optimizer` at stage 3."""

    stages = (3,)


class _Scale(LossScalerBase):
    """The engine's loss scale, read when it is asked for."""

    scale_factor = 2.0

    def __init__(self, core: _C.Engine, dynamic: bool, section: dict[str, Any]) -> None:
        """`section`: fp16 of the configuration."""
        self._core = core
        self.dynamic = dynamic
        self.scale_window: int = section["loss_scale_window"]
        self.min_scale: float = section["min_loss_scale"]
        self.delayed_shift: int = section["hysteresis"]
        self.consecutive_hysteresis: bool = section["consecutive_hysteresis"]
        # By the names of LossScaleConfig, which DeepSpeed's optimizers without ZeRO have.
        self.use_grad_scaling: bool = section["enabled"]
        self.dynamic_loss_scale = dynamic
        self.min_loss_scale = self.min_scale

    @property
    def cur_scale(self) -> float:  # type: ignore[override]
        return self._core.loss_scale

    @property
    def cur_iter(self) -> int:
        """Steps so far, skipped ones included."""
        return self._core.global_steps

    def update_scale(self, overflow: bool) -> None:
        """Raises UsageError: the engine does it at each step."""
        raise UsageError("update_scale() of an engine's loss scale: the engine does it at each step")


class ZeroOptimizer(ZeROOptimizer, _ZeroOptimizer):
    """The engine's optimizer, with what programs read of DeepSpeed's. Everything more is local."""

    def _its_engine(self) -> Any:
        engine = None if self._engine is None else self._engine()
        if engine is None:
            raise UsageError("this optimizer belongs to no engine")
        return engine

    @property
    def zero_stage(self) -> int | None:
        """None when the engine is gone."""
        engine = None if self._engine is None else self._engine()
        return None if engine is None else engine._config.stage

    @property
    def single_partition_of_fp32_groups(self) -> list[torch.Tensor]:
        """This rank's fp32 weights by parameter group, flat. Copies, into which torch refuses to write: use
        zerotorch.utils.safe_set_full_fp32_param(). As the engine's local_weight() of the C++ API: local, but for the
        first call after the program has written into parameters."""
        core = self._required()
        found = []
        for group in self.param_groups:
            parts = [core.local_weight(self._names[one])[1] for one in group["params"] if one.requires_grad]
            with torch.inference_mode():
                found.append(torch.cat([*parts, torch.empty(0)]))
        return found

    fp32_partitioned_groups_flat = single_partition_of_fp32_groups

    @property
    def loss_scaler(self) -> LossScalerBase:
        """Has `loss_scale`, `cur_scale`, `cur_iter`, `dynamic`, `scale_loss()` and DynamicLossScaler's settings."""
        section = self._its_engine()._config.resolved["fp16"]
        return _Scale(self._required(), self.dynamic_loss_scale, section)

    loss_scale_config = loss_scaler

    @property
    def dynamic_loss_scale(self) -> bool:
        return bool(self._its_engine().dynamic_loss_scale())

    def needs_scaler(self) -> bool:
        """Whether a loss must be scaled before its backward: in fp16."""
        return bool(self._its_engine().fp16_enabled())

    def scale_if_loss(self, value: Any) -> Any:
        """A loss in fp16 times its scale; anything else as it is."""
        wanted = isinstance(value, torch.Tensor) and self.needs_scaler()
        return self._its_engine().scale(value) if wanted else value

    @property
    def clip_grad(self) -> float:
        return float(self._its_engine().gradient_clipping())

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        dtype: torch.dtype = self._its_engine().module_dtype
        return dtype

    def get_lr(self) -> float:
        """Of the first group."""
        return float(self.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """Of all groups, from the next update on."""
        self._its_engine().set_lr(lr)

    def offload_states(self, *args: Any, **kwargs: Any) -> None:
        """As the engine's."""
        self._its_engine().offload_states(*args, **kwargs)

    def reload_states(self, *args: Any, **kwargs: Any) -> None:
        """As the engine's."""
        self._its_engine().reload_states(*args, **kwargs)

    @property
    def parameter_offload(self) -> Any:
        """trl looks for ZeRO-3's coordinator here and goes on without one."""
        return _NoOffload()


class _NoModule(torch.nn.Module):
    def ds_external_parameters(self) -> Iterator[Any]:
        return iter(())


class _NoOffload:
    """What programs that take DeepSpeed's hooks off a module find: there are none."""

    def __init__(self) -> None:
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []
        self.module = _NoModule()

    def _register_deepspeed_module(self, module: Any) -> None:
        pass


#: What DeepSpeed makes of `optimizer.type` in small letters, on a device and offloaded.
_CLASSES: dict[str, tuple[type, type]] = {
    "adam": (FusedAdam, DeepSpeedCPUAdam),
    "adamw": (FusedAdam, DeepSpeedCPUAdam),
    "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
    "lion": (FusedLion, DeepSpeedCPULion),
    "lamb": (FusedLamb, FusedLamb),
    "sgd": (torch.optim.SGD, torch.optim.SGD),
    "rmsprop": (torch.optim.RMSprop, torch.optim.RMSprop),
}


@functools.cache
def class_of(kind: str | None, offloaded: bool) -> type[ZeroOptimizer]:
    """A ZeroOptimizer with the name of the class that DeepSpeed makes for `optimizer.type`, and of that class where
    there is one here: programs look at the name, as monitors of learning rates do, or ask isinstance(). Everything it
    does is ZeroOptimizer's. `kind` None: of a program's optimizer."""
    if kind is None:
        return ZeroOptimizer
    if kind.lower() == "muon":
        return type("MuonWithAuxAdam", (ZeroOptimizer,), {})
    bases = _CLASSES.get(kind.lower())
    if bases is None:
        return ZeroOptimizer
    base = bases[offloaded]
    names = [name for name in dir(base) if not name.startswith("__") and hasattr(ZeroOptimizer, name)]
    members = {name: inspect.getattr_static(ZeroOptimizer, name) for name in names}  # also what it inherits
    return type(base.__name__, (ZeroOptimizer, base), members)
