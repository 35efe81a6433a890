"""Sections of a configuration as objects, with DeepSpeed's names and defaults, for programs that make or read these
themselves.

The engine reads JSON by its own schema (`zerotorch.core.config`); nothing here decides what it does. `_tables` has the
modules under which programs know them.
"""

from __future__ import annotations

import enum
import functools
import math
import pathlib
import sys
import types
import typing
from typing import Any, ClassVar

from zerotorch.errors import ConfigError, UsageError


class DeepSpeedConfigModel:
    """A section: annotated members with defaults, set by keyword, under their own names or those in `_aliases`.

    "auto" means not given, unless `strict`. Members of a program's own class may be pydantic's Field(): its default, its
    alias and DeepSpeed's marks of deprecated names in `json_schema_extra` are kept; other limits are not. Raises
    ConfigError, which is a ValueError, for a key that the section does not have and for a value of another type. Local.
    """

    _aliases: ClassVar[dict[str, str]] = {}

    def __init__(self, strict: bool = False, **data: Any) -> None:
        kinds, aliases = self._kinds(), self._all_aliases()
        values = {name: self._default(name) for name in kinds}
        given = {aliases.get(key, key): value for key, value in data.items() if strict or value != "auto"}
        for name, value in given.items():
            if name not in kinds:
                raise ConfigError(f"{type(self).__name__} has no key '{name}': it has {', '.join(kinds)}")
            values[name] = _converted(value, kinds[name], f"{type(self).__name__}.{name}")
        for name in kinds:
            if name not in given and _is_field(values[name]):
                raise ConfigError(f"{type(self).__name__} needs a value of '{name}'")
        self.__dict__.update(values)
        self._rename(given)

    def _rename(self, given: dict[str, Any]) -> None:
        """What was given under a deprecated name becomes the value of the member that has taken its place."""
        for name in given:
            extra = getattr(getattr(type(self), name, None), "json_schema_extra", None) or {}
            new = extra.get("new_param", "")
            if not extra.get("deprecated") or not new or not extra.get("set_new_param", True):
                continue
            if new in given:
                raise ConfigError(f"{type(self).__name__}: '{name}' is an older name of '{new}': give one of them")
            *path, last = new.split(".")
            setattr(functools.reduce(getattr, path, self), last, extra.get("new_param_fn", _same)(getattr(self, name)))
            setattr(self, name, self._default(name))

    @classmethod
    def _default(cls, name: str) -> Any:
        """What a member is where it is not given; one of pydantic's Field() itself where it must be."""
        value: Any = getattr(cls, name, None)
        return value if not _is_field(value) or value.is_required() else value.get_default(call_default_factory=True)

    @classmethod
    def _all_aliases(cls) -> dict[str, str]:
        fields: dict[str, Any] = {name: getattr(cls, name, None) for name in cls._kinds()}
        return {**cls._aliases, **{one.alias: name for name, one in fields.items() if _is_field(one) and one.alias}}

    @classmethod
    def _kinds(cls) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        return {name: kind for name, kind in hints.items() if typing.get_origin(kind) is not ClassVar}

    @classmethod
    def known_keys(cls) -> set[str]:
        """Names of members, and their other names."""
        return {*cls._kinds(), *cls._all_aliases()}

    def model_dump(self) -> dict[str, Any]:
        """The values by name, sections inside as dictionaries."""
        return {
            name: value.model_dump() if isinstance(value, DeepSpeedConfigModel) else value
            for name, value in vars(self).items()
        }

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def get_scalar_param(param_dict: dict[str, Any], param_name: str, param_default_value: Any) -> Any:
    """What a dictionary has under a name, else the default."""
    return param_dict.get(param_name, param_default_value)


def _is_field(value: Any) -> bool:
    """pydantic's, which need not be installed."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic.")


def _same(value: Any) -> Any:
    return value


def _converted(value: Any, kind: Any, what: str) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if value is None:
            return None
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    kind = typing.get_origin(kind) or kind
    if kind is Any or isinstance(value, kind) and not (isinstance(value, bool) and kind is int):
        return value
    try:
        if issubclass(kind, DeepSpeedConfigModel):
            return kind(**value)
        if issubclass(kind, (enum.Enum, pathlib.Path)):
            return kind(value)
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(f"{what} must be {kind.__name__}, got {value!r}")


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


DEFAULT_LEAF_MODULE_CLASSES = [
    f"transformers.models.{name}_moe.modeling_{name}_moe.{title}MoeSparseMoeBlock"
    for name, title in (("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
]
DEFAULT_LEAF_MODULE_CLASSES.insert(0, "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock")
DEFAULT_LEAF_MODULE_NAMES: list[str] = []
DEFAULT_LEAF_MODULE_NAME_SUFFIXES: list[str] = []


class DeepSpeedZeroLeafModuleConfig(DeepSpeedConfigModel):
    """Classes, names and suffixes of names."""

    classes: list[str] = DEFAULT_LEAF_MODULE_CLASSES
    names: list[str] = DEFAULT_LEAF_MODULE_NAMES
    name_suffixes: list[str] = DEFAULT_LEAF_MODULE_NAME_SUFFIXES

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(strict, **{key: [one] if isinstance(one, str) else one for key, one in data.items()})
        for key in ("classes", "names", "name_suffixes"):  # lists of its own, each name once
            setattr(self, key, list(dict.fromkeys(map(str, getattr(self, key)))))


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
    zeropp_loco_param: Any = None
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


class TensorBoardConfig(DeepSpeedConfigModel):
    """`tensorboard`."""

    enabled: bool = False
    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


class CSVConfig(TensorBoardConfig):
    """`csv_monitor`."""


class WandbConfig(DeepSpeedConfigModel):
    """`wandb`."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str = "deepspeed"


class CometConfig(DeepSpeedConfigModel):
    """`comet`."""

    enabled: bool = False
    samples_log_interval: int = 100
    project: str | None = None
    workspace: str | None = None
    api_key: str | None = None
    experiment_name: str | None = None
    experiment_key: str | None = None
    online: bool | None = None
    mode: str | None = None


class DeepSpeedMonitorConfig(DeepSpeedConfigModel):
    """All of them; `enabled` where one is."""

    tensorboard: TensorBoardConfig | None = None
    comet: CometConfig | None = None
    wandb: WandbConfig | None = None
    csv_monitor: CSVConfig | None = None

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(strict, **data)
        self.tensorboard = self.tensorboard or TensorBoardConfig()
        self.comet = self.comet or CometConfig()
        self.wandb = self.wandb or WandbConfig()
        self.csv_monitor = self.csv_monitor or CSVConfig()
        sections = (self.tensorboard, self.comet, self.wandb, self.csv_monitor)
        self.enabled = any(section.enabled for section in sections)


def get_monitor_config(param_dict: dict[str, Any]) -> DeepSpeedMonitorConfig:
    """The sections of a whole configuration."""
    names = ("tensorboard", "comet", "wandb", "csv_monitor")
    return DeepSpeedMonitorConfig(**{name: param_dict[name] for name in names if name in param_dict})
