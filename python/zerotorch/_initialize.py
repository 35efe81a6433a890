"""initialize(): from a module and a configuration to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm

from zerotorch import _C, life_cycle
from zerotorch._version import __version__
from zerotorch.config import DeepSpeedConfig, given_config
from zerotorch.distributed import init_distributed, world_group
from zerotorch.engine import DeepSpeedEngine
from zerotorch.errors import ConfigError, NotBuiltError, UsageError
from zerotorch.optimizer import LIVE, ZeroOptimizer, configuration_of, let_go
from zerotorch.optimizer_classes import class_of
from zerotorch.over_shards import OverShards
from zerotorch.precision import cast_buffers
from zerotorch.utils.logging import log_dist, logger
from zerotorch.zero import partition
from zerotorch.zero.gathered import engine_of

#: Values of a parameter group that the engine takes when it is made.
_ON_GROUPS = (*LIVE, "initial_accumulator_value", "use_muon")


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
        engine = _Builder(model, settings, optimizer, model_parameters).build()
    engine.lr_scheduler = _scheduler(engine, settings, lr_scheduler)
    engine.client_lr_scheduler = lr_scheduler
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data, collate_fn=collate_fn)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def _move_to_accelerator(model: torch.nn.Module, local_rank: int) -> str | None:
    """Where the engine has to take it: what deferred_init has made would be whole there."""
    from zerotorch.accelerator import get_accelerator

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


def _part_from_spectral_norms(model: torch.nn.Module) -> None:
    """torch.nn.utils.spectral_norm leaves a tensor beside the parameter that has its memory, or a graph that holds it,
    until the next forward computes it anew: gives the module one of its own."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                setattr(module, hook.name, getattr(module, hook.name).detach().clone())


class _Builder:
    """What initialize() knows on the way to the engine."""

    def __init__(self, model: torch.nn.Module, config: DeepSpeedConfig, optimizer: Any, parameters: Any) -> None:
        self.device: str | None = None
        self.model = model
        self.config = config
        self.names = {parameter: name for name, parameter in model.named_parameters()}
        self.flags = life_cycle.Flags(model)
        self.given = None if parameters is None else list(parameters)
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            if not callable(optimizer):
                raise ConfigError(
                    f"initialize(optimizer=) is a torch.optim.Optimizer or a function, not a {type(optimizer).__name__}"
                )
            optimizer = optimizer(self.given if self.given is not None else self._trainable())
        self.client: torch.optim.Optimizer | None = optimizer

    def build(self) -> DeepSpeedEngine:
        if not self._trains:
            trained_by = self._trained_by()
            if trained_by is not None:
                return self._make(trained_by._core, None, trained_by)
        self.device = life_cycle.take_over(self.model)
        self.flags = life_cycle.Flags(self.model)
        try:
            return self._make_new()
        except BaseException:
            self.flags.restore()
            raise

    @property
    def _trains(self) -> bool:
        return self.client is not None or self.config.names_optimizer or bool(self.given)

    def _make_new(self) -> DeepSpeedEngine:
        self.config = self.config.with_leaf_modules(self.model)
        partition.finish(self.model)
        self.device = self.device or _move_to_accelerator(self.model, world_group().local_rank)
        _part_from_spectral_norms(self.model)
        cast_buffers(self.model, self.config.raw, self.config.param_dtype)
        self._tell_what_is_cast()
        if self.client is not None:
            return self._with_client(self.client)
        return self._with_configured() if self._trains else self._for_evaluation()

    def _tell_what_is_cast(self) -> None:
        """A module of several precisions, as fp32 adapters on a bf16 base, gets one."""
        kinds = {parameter.dtype for parameter in self.names}
        wide = [name for parameter, name in self.names.items() if parameter.dtype == torch.float32]
        if self.config.param_dtype != torch.float32 and wide and len(kinds) > 1:
            log_dist(
                f"{len(wide)} fp32 parameters ('{wide[0]}', ...) of a module that is not all fp32 become "
                f"{self.config.param_dtype} for forward and backward, as the configuration says; those that are trained "
                "keep fp32 master weights",
                ranks=[0],
            )

    def _trainable(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.names if parameter.requires_grad]

    def _make(
        self, core: _C.Engine, optimizer: ZeroOptimizer | None, trained_by: DeepSpeedEngine | None = None
    ) -> DeepSpeedEngine:
        log_dist(
            f"DeepSpeed info: version={__version__} (zerotorch), stage {self.config.stage}, {core.world_size} ranks",
            ranks=[0],
        )
        return DeepSpeedEngine(self.model, core, self.config, optimizer, None, self.names, self.flags, trained_by)

    def _for_evaluation(self) -> DeepSpeedEngine:
        config = self.config.without("optimizer", "scheduler")
        core = _C.initialize(self.model, config, world_group(), [], True, device=self.device)
        self.flags.restore()  # the program may train them with another engine, or with none
        return self._make(core, None)

    def _trained_by(self) -> DeepSpeedEngine | None:
        """The engine that has all parameters already, as Lightning's has when a trainer evaluates after it has fitted:
        the weights are where that one has them, whatever stage this configuration says."""
        engine = life_cycle.only_engine_of(self.names)
        if engine is None or engine._config.param_dtype == self.config.param_dtype:
            return engine
        if engine.optimizer is None:  # it gives way to one of the other precision
            return None
        raise ConfigError(
            f"the module is trained by an engine whose parameters are {engine._config.param_dtype}, and cannot be "
            f"evaluated as {self.config.param_dtype} beside it"
        )

    # ---- the configuration's optimizer ----

    def _with_configured(self) -> DeepSpeedEngine:
        # All where the program names none: what it unfreezes later is to be trained.
        groups = self._groups_of(self.given if self.given is not None else list(self.names))
        if not self.config.names_optimizer:
            logger.info("neither initialize() nor the configuration names an optimizer: AdamW with its defaults trains")
            self.config = self.config.with_section("optimizer", {"type": "AdamW"})
        config = self.config.without("scheduler")
        core = _C.initialize(self.model, config, world_group(), self._for_engine(groups), device=self.device)
        section = self.config.resolved["optimizer"]
        defaults = {key: value for key, value in (section.get("params") or {}).items() if value is not None}
        defaults = {key: tuple(value) if isinstance(value, list) else value for key, value in defaults.items()}
        facade, indices = self._facade_groups(core, groups)
        zero = self.config.resolved["zero_optimization"]
        offloaded = bool(zero["cpu_offload"]) or zero["offload_optimizer"]["device"] != "none"
        optimizer = class_of(section["type"], offloaded)(facade, defaults, None, section["type"])
        optimizer.attach(core, self.names, indices)
        return self._make(core, optimizer)

    def _groups_of(self, given: list[Any]) -> list[dict[str, Any]]:
        """Parameter groups; tensors without a group of their own are one."""
        if any(isinstance(one, dict) for one in given):
            if not all(isinstance(one, dict) for one in given):
                raise ConfigError("model_parameters are parameters or parameter groups, not both")
            groups = [{**group, "params": _as_list(group["params"])} for group in given]
        else:
            groups = [{"params": [one[1] if isinstance(one, tuple) else one for one in given]}]
        self._check_and_freeze(groups)
        return groups

    def _check_and_freeze(self, groups: list[dict[str, Any]]) -> None:
        held: set[torch.nn.Parameter] = set()
        for index, group in enumerate(groups):
            for parameter in group["params"]:
                if parameter not in self.names:
                    raise ConfigError(
                        f"parameter group {index} holds a tensor of shape {tuple(parameter.shape)} that is no parameter "
                        "of the model; make the optimizer from model.parameters() after the model is complete"
                    )
                held.add(parameter)
        if any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in self._trainable()):
            logger.warning(
                "parameters have gradients from before initialize(): the engine begins without them; call zero_grad() "
                "before, or run that backward by the engine"
            )
        left = [parameter for parameter in self._trainable() if parameter not in held]
        for parameter in left:
            parameter.requires_grad_(False)
        if left:
            logger.warning(
                "%d parameters require a gradient and are in no parameter group ('%s', ...): they are not trained, and "
                "are frozen",
                len(left),
                self.names[left[0]],
            )

    def _for_engine(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """As the engine takes them; none where there is one group without values of its own."""
        taken = [{key: value for key, value in group.items() if key in _ON_GROUPS} for group in groups]
        if not any(group["params"] for group in groups):
            raise ConfigError("no parameter group has parameters: there is nothing to train")
        if len(groups) == 1 and not taken[0]:
            return []
        held = [group for group in groups if group["params"]]  # Trainer's group without decay may be empty
        result = []
        for group, values in zip(groups, taken, strict=True):
            if not group["params"]:
                continue
            # The only group gets frozen parameters, too: the program may add them to it when it unfreezes them.
            members = list(self.names) if len(held) == 1 else group["params"]
            result.append({**values, "names": [self.names[parameter] for parameter in members]})
        return result

    def _facade_groups(
        self, core: _C.Engine, groups: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[int | None]]:
        """Groups as the engine made them (Muon makes two of one), and the engine's number of each."""
        facade: dict[int, dict[str, Any]] = {}
        for group in groups:
            for parameter in group["params"]:
                index = core.parameter_group_of(self.names[parameter])
                if index not in facade:
                    facade[index] = {**group, "params": [], "lr": core.learning_rate(index)}
                    if self.config.optimizer_name == "muon":
                        facade[index]["use_muon"] = index % 2 == 0
                facade[index]["params"].append(parameter)
        return [facade[index] for index in sorted(facade)], [*sorted(facade)]

    # ---- the program's optimizer ----

    def _with_client(self, client: torch.optim.Optimizer) -> DeepSpeedEngine:
        if self.config.names_optimizer:
            logger.warning("initialize() gives an optimizer: it takes the place of the configuration's ('optimizer')")
        let_go(client)  # of an engine that was
        if any(state.get("step", 1) != 0 for state in client.state.values()):
            raise ConfigError(
                "the optimizer has been stepped before initialize(); its states cannot be taken over: give a fresh one"
            )
        self._check_and_freeze(client.param_groups)
        configured = configuration_of(client)
        if configured is None:
            return self._over_shards(client)
        kind, params = configured
        base = {key: value for key, value in params[0].items() if key != "use_muon"}
        for index, values in enumerate(params):
            for key, value in values.items():
                if key not in _ON_GROUPS and value != base[key]:
                    raise ConfigError(f"parameter group {index} of the optimizer has another {key} than group 0")
        groups = [
            {"params": group["params"], **{key: value for key, value in values.items() if key in _ON_GROUPS}}
            for group, values in zip(client.param_groups, params, strict=True)
        ]
        text = self.config.with_section("optimizer", {"type": kind, "params": base}).without("scheduler")
        core = _C.initialize(
            self.model,
            text,
            world_group(),
            self._for_engine(groups),
            optimizer_name=f"the program's {type(client).__name__}",
            device=self.device,
        )
        optimizer = ZeroOptimizer(client.param_groups, dict(client.defaults), client, kind)
        optimizer.attach(core, self.names, _numbers_of(client.param_groups))
        return self._make(core, optimizer)

    def _over_shards(self, client: torch.optim.Optimizer) -> DeepSpeedEngine:
        name = type(client).__name__
        if self.config.stage > 0 and not self.config.allows_untested_optimizer:  # as in DeepSpeed
            raise ConfigError(
                f"{name} is none of the optimizers that the engine updates itself (torch.optim.AdamW, Adam, SGD, Adagrad, "
                "RMSprop and those of zerotorch.ops). One that treats elements one by one is right over shards: set "
                '"zero_allow_untested_optimizer": true; one that needs whole parameters is not'
            )
        groups = [
            {"names": [self.names[parameter] for parameter in group["params"]]}
            for group in client.param_groups
            if group["params"]
        ]

        made: list[OverShards] = []

        def make(shards: list[list[torch.Tensor]]) -> OverShards:
            made.append(OverShards(client, shards))
            return made[0]

        text = self.config.without("optimizer", "scheduler")
        core = _C.initialize(
            self.model,
            text,
            world_group(),
            groups if len(groups) > 1 else [],
            optimizer_factory=make,
            optimizer_name=name,
            device=self.device,
        )
        optimizer = ZeroOptimizer(client.param_groups, dict(client.defaults), client, name)
        optimizer.attach(core, self.names, _numbers_of(client.param_groups), made[0])
        return self._make(core, optimizer)


def _numbers_of(groups: list[dict[str, Any]]) -> list[int | None]:
    """The engine's numbers of a client's groups: it gets no empty ones."""
    numbers = iter(range(len(groups)))
    return [next(numbers) if group["params"] else None for group in groups]


def _as_list(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


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
    from zerotorch.runtime import lr_schedules

    source: Any = lr_schedules if kind in lr_schedules.VALID_LR_SCHEDULES else torch.optim.lr_scheduler
    return getattr(source, kind)(optimizer, **params)
