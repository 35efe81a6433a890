"""Where states can be, and which kinds there are."""

from __future__ import annotations

import enum
import pathlib

from ..config_utils import DeepSpeedConfigModel


class OffloadDeviceEnum(str, enum.Enum):
    """Memory tiers."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, enum.Enum):
    """What `engine.offload_states(include=)` names."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


class DeepSpeedZeroOffloadParamConfig(DeepSpeedConfigModel):
    """`zero_optimization.offload_param`."""

    device: OffloadDeviceEnum = OffloadDeviceEnum.none
    nvme_path: pathlib.Path | None = None
    buffer_count: int = 5
    buffer_size: int = 10**8
    max_in_cpu: int = 10**9
    pin_memory: bool = True


class DeepSpeedZeroOffloadOptimizerConfig(DeepSpeedConfigModel):
    """`zero_optimization.offload_optimizer`."""

    device: OffloadDeviceEnum = OffloadDeviceEnum.none
    nvme_path: pathlib.Path | None = None
    buffer_count: int = 4
    pin_memory: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    fast_init: bool = False
    ratio: float = 1.0
    super_offload: bool = False
    cpuadam_cores_perc: float = 0.8

    @property
    def pipeline(self) -> bool:
        return self.pipeline_read or self.pipeline_write
