"""`deepspeed.runtime.engine`: the engine under DeepSpeed's names, and the way to it."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from zerotorch import _C
from zerotorch.core.building import Builder
from zerotorch.core.distributed import init_distributed
from zerotorch.core.engine import Engine
from zerotorch.core.log import logger
from zerotorch.core.optimizer import ZeroOptimizer
from zerotorch.core.parameters import partition
from zerotorch.core.parameters.owner import engine_of
from zerotorch.errors import ConfigError, NotBuiltError, UsageError

from .. import comm as dist
from .._modules import attach
from ..accelerator import get_accelerator
from ..monitor.monitor import MonitorMaster
from ..utils import groups
from ..utils.timer import SynchronizedWallClockTimer, ThroughputTimer
from . import lr_schedules
from .base_optimizer import class_of
from .config import DeepSpeedConfig, given_config
from .dataloader import DeepSpeedDataLoader
from .sections import (
    DeepSpeedFP16Config,
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
    OffloadDeviceEnum,
    OffloadStateTypeEnum,
)

__all__ = ["DeepSpeedEngine", "dist", "groups", "initialize"]

_STAGE_OF_SHARDED_GRADIENTS = 2
_STAGE_OF_SHARDED_PARAMETERS = 3

_PIPELINES = "pipelines are not built; loop over forward, backward and step"
_OWN_GRADIENTS = "gradients go to their owners during backward, and are no longer with the module afterwards"
#: Members of DeepSpeed's that programs ask for, and why there are none.
_NOT_BUILT = {
    "train_batch": _PIPELINES,
    "eval_batch": _PIPELINES,
    "allreduce_gradients": _OWN_GRADIENTS,
    "buffered_allreduce_fallback": _OWN_GRADIENTS,
    "clip_fp32_gradients": "set gradient_clipping in the configuration; step() clips",
    "get_wall_clock_timers": "wall_clock_breakdown in the configuration prints the times, and zerotorch.trace keeps them",
    "set_data_post_process_func": "process batches in the loader's collate_fn",
    "set_train_micro_batch_size": "a loader may give batches of any size; set_train_batch_size() changes their number",
    "flops_profiler": "the section flops_profiler of the configuration prints the figures of a step",
}


#: Methods that return values of the configuration: what begins their names and paths, the rest of both, and defaults.
_SETTINGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("", "", {
        "log_level": None, "memory_breakdown": False, "dump_state": False, "dataloader_drop_last": False,
        "gradient_predivide_factor": 1.0, "zero_allow_untested_optimizer": False, "zero_force_ds_cpu_optimizer": True,
        "managed_gradient_accumulation": True, "steps_per_print": None, "wall_clock_breakdown": False,
    }),
    ("flops_profiler_", "flops_profiler.", {
        "enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True,
        "output_file": None, "recompute_fwd_factor": 0.0,
    }),
    ("zero_", "zero_optimization.", {
        "overlap_comm": None, "reduce_scatter": True, "contiguous_gradients": True, "reduce_bucket_size": None,
        "allgather_bucket_size": None, "allgather_partitions": True, "sub_group_size": None,
        "ignore_unused_parameters": True, "load_from_fp32_weights": True, "elastic_checkpoint": False,
        "legacy_stage1": False, "round_robin_gradients": False, "compute_grad_norm": True,
        "parameter_alignment": False, "log_trace_cache_warnings": False,
    }),
)


def _setting(path: str, default: Any = None) -> Callable[[Engine], Any]:
    """A method that returns a value of the configuration."""

    def read(self: Engine) -> Any:
        return self._config.setting(path, default)

    read.__doc__ = f"`{path}` of the configuration. Local."
    return read


class DeepSpeedEngine(Engine):
    """What ``zerotorch.initialize`` returns: an `Engine`, which says how it is used, with DeepSpeed's other members."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if self._config.logs_comms and self._changes is not None:
            dist.register_engine(self)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _NOT_BUILT:
                raise AttributeError(f"DeepSpeedEngine.{name}: {_NOT_BUILT[name]}") from None
            raise

    optimizer_class = staticmethod(class_of)

    @staticmethod
    def place(model: torch.nn.Module, local_rank: int) -> str | None:
        """Moves it to the accelerator, but what deferred_init has made, which would be whole there: the engine takes it."""
        accelerator = get_accelerator()
        if accelerator.device_name() == "cpu":
            return None
        parameters = list(model.parameters())
        if any(p.device.type != "cpu" or engine_of(p) or partition.placed(p) is not None for p in parameters):
            return None
        index = local_rank % accelerator.device_count()
        accelerator.set_device(index)
        device: str = accelerator.device_name(index)
        if any(_C.belongs_to_engine(p) for p in parameters):
            return device
        model.to(device)
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training and not self.has_ended:
            self.tput_timer.start()
        return super().forward(*args, **kwargs)

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        self._require_training("step()")
        before = self.global_steps
        super().step(lr_kwargs)
        self.tput_timer.stop(global_step=self.global_steps > before)

    forward.__doc__, step.__doc__ = Engine.forward.__doc__, Engine.step.__doc__

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Any = None,
        num_local_io_workers: int | None = None,
    ) -> Any:
        """A loader of this rank's part of `dataset`; iterating over it is one pass. Local."""
        return DeepSpeedDataLoader(
            dataset,
            batch_size or self.train_micro_batch_size_per_gpu(),
            rank=self.global_rank,
            world_size=self.world_size,
            is_training=route == "train",
            data_sampler=data_sampler,
            collate_fn=collate_fn,
            workers=num_local_io_workers or 0,
            drop_last=bool(self._config.resolved.get("dataloader_drop_last") or False),
        )

    # ---- settings ----

    communication_data_type = property(_setting("communication_data_type"))
    aio_config = _setting("aio")
    gradient_clipping = _setting("gradient_clipping", 0.0)
    fp16_enabled = _setting("fp16.enabled", False)
    bfloat16_enabled = _setting("bf16.enabled", False)
    zero_optimization_stage = _setting("zero_optimization.stage", 0)
    load_universal_checkpoint = _setting("checkpoint.load_universal", False)
    use_node_local_storage = _setting("checkpoint.use_node_local_storage", False)
    optimizer_params = _setting("optimizer.params")
    optimizer_legacy_fusion = _setting("optimizer.legacy_fusion", False)
    scheduler_name = _setting("scheduler.type")
    scheduler_params = _setting("scheduler.params")
    fp16_auto_cast = _setting("fp16.auto_cast", False)
    fp16_master_weights_and_gradients = _setting("fp16.fp16_master_weights_and_grads", False)
    bf16_master_weights_and_gradients = _setting("bf16.bf16_master_weights_and_grads", False)
    bf16_optimizer_states = _setting("bf16.bf16_optimizer_states", False)
    zero_max_live_parameters = _setting("zero_optimization.stage3_max_live_parameters")
    zero_max_reuse_distance = _setting("zero_optimization.stage3_max_reuse_distance")
    zero_prefetch_bucket_size = _setting("zero_optimization.stage3_prefetch_bucket_size")
    zero_param_persistence_threshold = _setting("zero_optimization.stage3_param_persistence_threshold")
    zero_model_persistence_threshold = _setting("zero_optimization.stage3_model_persistence_threshold")
    zero_module_granularity_threshold = _setting("zero_optimization.stage3_module_granularity_threshold", 0)
    zero_hpz_partition_size = _setting("zero_optimization.zero_hpz_partition_size", 1)
    zero_quantized_weights = _setting("zero_optimization.zero_quantized_weights", False)
    zero_quantized_gradients = _setting("zero_optimization.zero_quantized_gradients", False)
    zero_quantized_nontrainable_weights = _setting("zero_optimization.zero_quantized_nontrainable_weights", False)
    zeropp_loco_param = _setting("zero_optimization.zeropp_loco_param")
    zero_partial_offload = _setting("zero_optimization.offload_optimizer.ratio", 1.0)
    zero_allgather_sequential = _setting("zero_optimization.stage3_allgather_sequential", False)
    zero_multi_rank_bucket_allreduce = _setting("zero_optimization.use_multi_rank_bucket_allreduce", True)
    super_offload = _setting("zero_optimization.offload_optimizer.super_offload", False)
    cpuadam_cores_perc = _setting("zero_optimization.offload_optimizer.cpuadam_cores_perc", 0.8)
    is_sanity_checks_enabled = _setting("zero_optimization.enable_sanity_checks", False)

    def optimizer_name(self) -> str | None:
        """The class of the program's optimizer, else what the configuration names, in small letters."""
        if self.optimizer is not None and self.optimizer.client is not None:
            return type(self.optimizer.client).__name__
        section = self._config.raw.get("optimizer")
        return str(section["type"]).lower() if isinstance(section, dict) and section.get("type") else None

    def zero_offload_optimizer(self) -> Any:
        """The section, as an object; None where it was not given."""
        return self._offload("offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig)

    def zero_offload_param(self) -> Any:
        """The section, as an object; None where it was not given."""
        return self._offload("offload_param", DeepSpeedZeroOffloadParamConfig)

    def _offload(self, name: str, kind: Callable[..., Any]) -> Any:
        section = (self._config.raw.get("zero_optimization") or {}).get(name)
        known = kind().model_dump()
        if not isinstance(section, dict):
            return None
        return kind(**{key: value for key, value in section.items() if key in known and value is not None})

    def zero_optimization(self) -> bool:
        return self._config.stage > 0

    def zero_optimization_partition_gradients(self) -> bool:
        return self._config.stage >= _STAGE_OF_SHARDED_GRADIENTS

    def zero_optimization_partition_weights(self) -> bool:
        return self._config.stage >= _STAGE_OF_SHARDED_PARAMETERS

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Of stage 3, for programs that ask before they save: the engine's own calls gather in any case."""
        section = self._config.raw.get("zero_optimization") or {}
        names = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
        return any(section.get(name) is True for name in names)

    def dynamic_loss_scale(self) -> bool:
        return bool(self.fp16_enabled() and not self._config.resolved["fp16"]["loss_scale"])

    def zero_cpu_offload(self) -> bool:
        section = self.zero_offload_optimizer()
        return section is not None and section.device == OffloadDeviceEnum.cpu

    def zero_nvme_offload_optimizer(self) -> bool:
        section = self.zero_offload_optimizer()
        return section is not None and section.device == OffloadDeviceEnum.nvme

    zero_use_cpu_optimizer = zero_cpu_offload

    def postscale_gradients(self) -> bool:
        return not self._config.raw.get("prescale_gradients", False)

    def initial_dynamic_scale(self) -> int:
        return int(2 ** self._config.resolved["fp16"]["initial_scale_power"])

    def checkpoint_tag_validation_enabled(self) -> bool:
        return self._config.tag_validation != "ignore"

    def checkpoint_tag_validation_fail(self) -> bool:
        return self._config.tag_validation == "fail"

    def torch_autocast_enabled(self) -> bool:
        return self._config.autocast_dtype is not None

    def torch_autocast_dtype(self) -> torch.dtype | None:
        return self._config.autocast_dtype

    def dynamic_loss_scale_args(self) -> dict[str, Any]:
        """Arguments of DynamicLossScaler."""
        known = DeepSpeedFP16Config().model_dump()
        section = self._config.resolved["fp16"]
        given = {key: value for key, value in section.items() if key in known and value is not None}
        return DeepSpeedFP16Config(**given).dynamic_loss_scale_args()

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Of the parameters, and of their accumulated gradients."""
        names = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
        wanted = self._config.resolved["data_types"]["grad_accum_dtype"]
        return self._config.param_dtype, names.get(wanted, torch.float32)

    def is_first_weights_partition_group(self) -> bool:
        return bool(self.zero_optimization_stage() == _STAGE_OF_SHARDED_PARAMETERS)

    # ---- ranks: all are data-parallel ----

    mp_world_size = sequence_parallel_size = 1
    mpu: Any = None
    seq_parallel_group: Any = None
    pipeline_parallelism = has_moe_layers = use_ds_comm = is_compiled = False
    num_experts: tuple[int, ...] = ()

    @property
    def sparse_tensor_module_names(self) -> set[str]:
        """Of the weights whose gradients "sparse_gradients": true sends by their rows: those of embeddings."""
        if not self._config.raw.get("sparse_gradients", False):
            return set()
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return {f"{name}.weight" for name, module in self.module.named_modules() if isinstance(module, kinds)}

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank()

    def get_model_parallel_rank(self) -> int:
        return 0

    get_tensor_parallel_rank = get_model_parallel_rank

    def get_sequence_parallel_group(self) -> Any:
        """None: sequences are not split."""
        return None

    def autotp_size(self) -> int:
        return 0

    def random_ltd_enabled(self) -> bool:
        return False

    data_efficiency_enabled = curriculum_learning_enabled = autotuning_enabled = random_ltd_enabled
    is_deepcompile_enabled = is_deepcompile_active = random_ltd_enabled

    @property
    def data_parallel_group(self) -> Any:
        """torch.distributed's group of all ranks; None without one."""
        return dist.get_world_group()

    @property
    def dist_backend(self) -> str | None:
        """Of torch.distributed; None without a process group."""
        return torch.distributed.get_backend() if dist.is_initialized() else None

    @property
    def seq_dp_world_size(self) -> int:
        return dist.get_world_size()

    @property
    def client_optimizer(self) -> Any:
        """The optimizer that the program gave; None where the configuration names it."""
        return None if self.optimizer is None else self.optimizer.client

    @property
    def inside_no_sync_ctxt(self) -> bool:
        return self._in_no_sync

    @property
    def param_names(self) -> dict[torch.nn.Parameter, str]:
        """Names by parameter."""
        return {parameter: name for name, parameter in self.module.named_parameters()}

    @property
    def _global_grad_norm(self) -> float | None:
        return self.get_global_grad_norm()

    # ---- what programs write and measure with ----

    @functools.cached_property
    def timers(self) -> SynchronizedWallClockTimer:
        """Timers for the program's own use; the engine's figures are those of wall_clock_breakdown."""
        return SynchronizedWallClockTimer()

    @functools.cached_property
    def tput_timer(self) -> ThroughputTimer:
        """Counts micro-steps from forward to step(), and samples per second from the third step on."""
        return ThroughputTimer(
            batch_size=self.train_batch_size(),
            steps_per_output=self._config.resolved["steps_per_print"] or None,
            synchronized=False,  # a wait at every micro-step would be the slowest part of small ones
        )

    @functools.cached_property
    def monitor(self) -> MonitorMaster:
        """Writes the program's events into the files of the engine's."""
        return MonitorMaster(self._config.raw)

    def _get_optimizer_ckpt_name(self, checkpoints_path: Any, tag: Any, expp_rank: int) -> str:
        """Where checkpoints of DeepSpeed have the states of a rank's experts. The engine neither writes nor reads such
        files."""
        return os.path.join(checkpoints_path, str(tag), f"expp_rank_{expp_rank}_mp_rank_00_optim_states.pt")

    # ---- gradients ----

    def _backward_epilogue(self) -> None:
        """What DeepSpeed has to be told after a backward of the program's own: here gradients are with their owners when
        it ends. Raises UsageError for an engine that cannot train."""
        self._require_training("_backward_epilogue()")

    @contextlib.contextmanager
    def coalesce_grad_reduction(self) -> Iterator[None]:
        """Backwards inside are one micro-batch: their gradients are added, and the step() after the block updates.

        Stages 1 to 3, as in DeepSpeed; gradients are reduced as they come, since each rank keeps its shard of the sum
        only. Raises UsageError inside of another one or of no_sync(), and for step() inside.
        """
        if self.zero_optimization_stage() == 0:
            raise NotBuiltError("coalesce_grad_reduction requires ZeRO stage 1/2/3, got stage 0; use no_sync()")
        if not self._config.manages_accumulation:
            raise UsageError(
                "coalesce_grad_reduction is not supported with managed_gradient_accumulation=False, where all backwards "
                "before a step() are one micro-batch anyway"
            )
        if self._in_no_sync:
            raise UsageError("coalesce_grad_reduction cannot be nested inside another no_sync context")
        self._in_no_sync = True
        try:
            yield
        finally:
            self._in_no_sync = False

    def get_mom(self) -> list[Any]:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [group["momentum"] if "momentum" in group else group.get("betas") for group in groups]

    @property
    def cur_scale(self) -> float:
        return self._core.loss_scale

    def get_batch_info(self) -> tuple[int, int, int]:
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def empty_partition_cache(self) -> None:
        """Gives memory that waits for its next use back to the system. Local."""
        _C.empty_cache()

    # ---- where states are ----

    def offload_states(
        self,
        include: Iterable[OffloadStateTypeEnum] | None = None,
        device: OffloadDeviceEnum = OffloadDeviceEnum.cpu,
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Takes states (None: all) off the accelerator until reload_states(). States on the CPU are where they should be.

        Raises NotBuiltError for states on a GPU: where they are is for the configuration to say. Raises UsageError with
        offload_param, which has taken parameters away already, and without an optimizer; ConfigError for NVMe.
        """
        param = self.zero_offload_param()
        if param is not None and param.device != OffloadDeviceEnum.none:
            raise UsageError("Moving states across devices is not supported for offloaded parameters.")
        if self.optimizer is None:
            raise UsageError("Moving states across devices is not supported without an optimizer.")
        kinds = [OffloadStateTypeEnum(kind) for kind in (OffloadStateTypeEnum if include is None else include)]
        if device == OffloadDeviceEnum.none:
            logger.warning("offload_states(device=none) moves nothing")
            return
        if device == OffloadDeviceEnum.nvme:
            raise ConfigError("NVMe offload is not supported for offloading states: use cpu")
        for kind in kinds:
            if self._state_device(kind).type != "cpu":
                raise NotBuiltError(
                    f"offload_states(): {kind.value} are on {self._core.device} and stay there while the engine lives; "
                    "set zero_optimization.offload_optimizer.device to cpu, or destroy() the engine and make another"
                )

    def reload_states(self, non_blocking: bool = False) -> None:
        """Takes states back that offload_states() has taken away. Raises UsageError without an optimizer."""
        if self.optimizer is None:
            raise UsageError("Moving states across devices is not supported without an optimizer.")

    def _state_device(self, kind: OffloadStateTypeEnum) -> torch.device:
        offloads = (OffloadStateTypeEnum.optim_states, OffloadStateTypeEnum.hp_params)
        on_host = kind in offloads and (self.zero_cpu_offload() or self.zero_nvme_offload_optimizer())
        return torch.device("cpu" if on_host else self._core.device)


for _begins, _section, _values in _SETTINGS:
    for _key, _default in _values.items():
        setattr(DeepSpeedEngine, _begins + _key, _setting(_section + _key, _default))


def initialize(
    args: Any = None,
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = 29500,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Any = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, ZeroOptimizer | None, Any, Any]:
    """Makes an engine that trains `model` under ZeRO. *Collective.*

    Args:
        args: may have `deepspeed_config`, the path of the configuration.
        model: any module; it is converted to the configuration's precision, and, where ``get_accelerator()`` is CUDA's,
            moved to the GPU of this rank's place on its host, unless it is on one, or was built under ``zero.Init``.
        optimizer: a torch.optim.Optimizer over the module's parameters, or a function that makes one of
            `model_parameters`. Else the configuration's; where that names none either, AdamW if `model_parameters` are
            given, and an engine that only evaluates if not.
        model_parameters: parameters, or dictionaries of parameter groups.
        training_data: a dataset; the third result is then this rank's DataLoader of it.
        lr_scheduler: an object with step(), or a function that makes one of the optimizer. Else the configuration's.
        distributed_port: as in init_distributed().
        config: a dictionary, or the path of a JSON file; `config_params` is its older name.

    Returns:
        The engine, its optimizer, the data loader, the scheduler; None for what there is not.

    Raises:
        ConfigError: for the configuration or the optimizer, naming what is wrong.
        UsageError: for a model that cannot be trained.
    """
    if model is None or not isinstance(model, torch.nn.Module):
        raise UsageError(f"deepspeed.initialize requires a model: a torch.nn.Module, got {type(model).__name__}")
    if mpu is not None or mesh_param is not None:
        raise NotBuiltError("initialize(mpu=, mesh_param=): tensor and sequence parallelism are not built for Python")
    with partition.suspended():
        settings = DeepSpeedConfig(given_config(args, config, config_params))
        init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
        engine = Builder(DeepSpeedEngine, model, settings, optimizer, model_parameters).build()
    assert isinstance(engine, DeepSpeedEngine)
    engine.lr_scheduler = _scheduler(engine, settings, lr_scheduler)
    engine.client_lr_scheduler = lr_scheduler
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data, collate_fn=collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _scheduler(engine: DeepSpeedEngine, config: DeepSpeedConfig, given: Any) -> Any:
    if given is not None:
        if hasattr(given, "step"):
            return given
        if not callable(given):
            raise ConfigError(f"initialize(lr_scheduler=) has no step(), and is no function: {type(given).__name__}")
        return given(engine.basic_optimizer)
    if not config.names_scheduler or engine.optimizer is None:
        return None
    section = config.raw["scheduler"]
    return make_scheduler(engine.optimizer, section["type"], section.get("params") or {})


def make_scheduler(optimizer: torch.optim.Optimizer, kind: str, params: dict[str, Any]) -> Any:
    """A schedule by the name that configurations give it: DeepSpeed's, or torch.optim.lr_scheduler's."""
    source: Any = lr_schedules if kind in lr_schedules.VALID_LR_SCHEDULES else torch.optim.lr_scheduler
    return getattr(source, kind)(optimizer, **params)


__getattr__, __dir__ = attach(__name__)
