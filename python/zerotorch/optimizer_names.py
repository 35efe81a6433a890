"""Members of DeepSpeed's optimizers that programs read from `engine.optimizer`. Everything is local."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from zerotorch.errors import UsageError
from zerotorch.runtime.fp16.loss_scaler import LossScalerBase

if TYPE_CHECKING:
    from zerotorch import _C
    from zerotorch.engine import DeepSpeedEngine


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


class OptimizerNames:
    """Base of the engine's optimizer."""

    param_groups: list[dict[str, Any]]
    _required: Callable[[], _C.Engine]
    _names: dict[torch.nn.Parameter, str]
    _engine: weakref.ref[DeepSpeedEngine] | None = None

    def _its_engine(self) -> DeepSpeedEngine:
        engine = None if self._engine is None else self._engine()
        if engine is None:
            raise UsageError("this optimizer belongs to no engine")
        return engine

    @property
    def zero_stage(self) -> int | None:
        """None when the engine is gone."""
        engine = None if self._engine is None else self._engine()
        return None if engine is None else engine.zero_optimization_stage()

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
        return self._its_engine().dynamic_loss_scale()

    def needs_scaler(self) -> bool:
        """Whether a loss must be scaled before its backward: in fp16."""
        return self._its_engine().fp16_enabled()

    def scale_if_loss(self, value: Any) -> Any:
        """A loss in fp16 times its scale; anything else as it is."""
        wanted = isinstance(value, torch.Tensor) and self.needs_scaler()
        return self._its_engine().scale(value) if wanted else value

    @property
    def clip_grad(self) -> float:
        return self._its_engine().gradient_clipping()

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters."""
        return self._its_engine().module_dtype

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
