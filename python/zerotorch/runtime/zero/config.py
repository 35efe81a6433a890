"""The section `zero_optimization`, with DeepSpeed's names and defaults."""

from __future__ import annotations

import enum
import sys
from typing import Any, ClassVar

from ...errors import ConfigError, UsageError
from ..config_utils import DeepSpeedConfigModel
from .leaf_module_config import DeepSpeedZeroLeafModuleConfig
from .offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
    OffloadStateTypeEnum,
)

__all__ = [
    "DeepSpeedZeroConfig",
    "DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
    "ZeroStageEnum",
    "get_zero_config",
]


class ZeroStageEnum(int, enum.Enum):
    """What is sharded; each stage includes those before it."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


_STAGE3 = (
    *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"),
    *("max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold"),
    *("use_all_reduce_for_fetch_params", "allgather_sequential"),
)


class DeepSpeedZeroConfig(DeepSpeedConfigModel):
    """For programs that make one; `initialize()` takes dictionaries."""

    _aliases: ClassVar[dict[str, str]] = {f"stage3_{name}": name for name in _STAGE3}

    stage: ZeroStageEnum = ZeroStageEnum.disabled
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 5 * 10**8
    use_multi_rank_bucket_allreduce: bool = True
    allgather_partitions: bool = True
    allgather_bucket_size: int = 5 * 10**8
    overlap_comm: bool | None = None
    compute_grad_norm: bool = True
    load_from_fp32_weights: bool = True
    elastic_checkpoint: bool = False
    offload_param: DeepSpeedZeroOffloadParamConfig | None = None
    offload_optimizer: DeepSpeedZeroOffloadOptimizerConfig | None = None
    zenflow: Any = None
    sub_group_size: int = 10**9
    cpu_offload_param: bool | None = None
    cpu_offload_use_pin_memory: bool | None = None
    cpu_offload: bool | None = None
    prefetch_bucket_size: int = 5 * 10**7
    param_persistence_threshold: int = 10**5
    model_persistence_threshold: int = sys.maxsize
    max_live_parameters: int = 10**9
    max_reuse_distance: int = 10**9
    gather_16bit_weights_on_model_save: bool = False
    module_granularity_threshold: int = 0
    use_all_reduce_for_fetch_params: bool = False
    allgather_sequential: bool = False
    stage3_gather_fp16_weights_on_model_save: bool = False
    ignore_unused_parameters: bool = True
    legacy_stage1: bool = False
    round_robin_gradients: bool = False
    parameter_alignment: bool = False
    zero_hpz_partition_size: int = 1
    zero_quantized_weights: bool = False
    zero_quantized_nontrainable_weights: bool = False
    zero_quantized_gradients: bool = False
    memory_efficient_linear: bool = True
    pipeline_loading_checkpoint: bool = False
    override_module_apply: bool = True
    log_trace_cache_warnings: bool = False
    enable_sanity_checks: bool = False
    save_muon_momentum_buffer_in_memory: bool = False
    leaf_module: DeepSpeedZeroLeafModuleConfig | None = None

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(strict, **data)
        if self.overlap_comm is None:
            self.overlap_comm = self.stage == ZeroStageEnum.weights
        if self.cpu_offload and self.offload_optimizer is None:
            self.offload_optimizer = DeepSpeedZeroOffloadOptimizerConfig(device="cpu")
        if self.cpu_offload_param and self.offload_param is None:
            self.offload_param = DeepSpeedZeroOffloadParamConfig(device="cpu")
        if self.stage3_gather_fp16_weights_on_model_save:
            self.gather_16bit_weights_on_model_save = True
        if not self.compute_grad_norm and self.stage not in (1, 2):
            raise ConfigError("zero_optimization.compute_grad_norm: false is for stages 1 and 2")
        partial = self.offload_optimizer is not None and self.offload_optimizer.ratio < 1
        if partial and self.stage != ZeroStageEnum.weights:
            raise UsageError("zero_optimization.offload_optimizer.ratio below 1 is for stage 3")
        if self.leaf_module is None:
            self.leaf_module = DeepSpeedZeroLeafModuleConfig()


def get_zero_config(param_dict: dict[str, Any]) -> DeepSpeedZeroConfig:
    """The section of a whole configuration; true stands for stage 1."""
    section = param_dict.get("zero_optimization", {})
    return DeepSpeedZeroConfig(**({"stage": int(section)} if isinstance(section, bool) else section))
