"""The sections `fp16` and `bf16`, with DeepSpeed's names and defaults."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ConfigError
from .config_utils import DeepSpeedConfigModel

FP16 = "fp16"
BFLOAT16 = "bf16"
BFLOAT16_OLD = "bfloat16"


class DeepSpeedBF16Config(DeepSpeedConfigModel):
    """`bf16`."""

    enabled: bool = False
    immediate_grad_update: bool = False
    check_grad_overflow: bool = True
    bf16_master_weights_and_grads: bool = False
    bf16_optimizer_states: bool = False


class DeepSpeedFP16Config(DeepSpeedConfigModel):
    """`fp16`."""

    enabled: bool = False
    auto_cast: bool = False
    loss_scale: float = 0.0
    initial_scale_power: int = 16
    loss_scale_window: int = 1000
    hysteresis: int = 2
    consecutive_hysteresis: bool = False
    min_loss_scale: int = 1
    fp16_master_weights_and_grads: bool = False

    def __init__(self, strict: bool = False, **data: Any) -> None:
        if "loss_scale" in data and (strict or data["loss_scale"] != "auto"):
            data["loss_scale"] = _loss_scale(data["loss_scale"])
        super().__init__(strict, **data)
        if not self.enabled or self.loss_scale != 0:  # of a dynamic scale
            return
        for name in ("loss_scale_window", "min_loss_scale"):
            if getattr(self, name) < 1:
                raise ConfigError(f"fp16.{name} must be at least 1, got {getattr(self, name)}")

    def initial_dynamic_scale(self) -> int:
        return int(2**self.initial_scale_power)

    def dynamic_loss_scale_args(self) -> dict[str, Any]:
        """Arguments of DynamicLossScaler."""
        return {
            "init_scale": 2**self.initial_scale_power,
            "scale_window": self.loss_scale_window,
            "delayed_shift": self.hysteresis,
            "consecutive_hysteresis": self.consecutive_hysteresis,
            "min_scale": self.min_loss_scale,
        }


def _loss_scale(value: Any) -> float:
    try:
        scale = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not 0 <= scale < math.inf:
        raise ConfigError(f"fp16.loss_scale must be a number, finite and at least 0, got {value!r}")
    return scale


def get_bfloat16_config(param_dict: dict[str, Any]) -> DeepSpeedBF16Config:
    """The section of a whole configuration, also under its older name."""
    return DeepSpeedBF16Config(**param_dict.get(BFLOAT16, param_dict.get(BFLOAT16_OLD, {})))


def get_float16_config(param_dict: dict[str, Any]) -> DeepSpeedFP16Config:
    """The section of a whole configuration."""
    return DeepSpeedFP16Config(**param_dict.get(FP16, {}))
