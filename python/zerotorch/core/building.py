"""From a module, a configuration and an optimizer to an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm

from zerotorch import _C
from zerotorch._version import __version__
from zerotorch.core import life_cycle
from zerotorch.core.config import Config
from zerotorch.core.distributed import world_group
from zerotorch.core.engine import Engine
from zerotorch.core.log import log_dist, logger
from zerotorch.core.optimizer import LIVE, ZeroOptimizer, configuration_of, let_go
from zerotorch.core.over_shards import OverShards
from zerotorch.core.parameters import partition
from zerotorch.core.precision import cast_buffers
from zerotorch.core.trained import Trained
from zerotorch.errors import ConfigError

#: Values of a parameter group that the engine takes when it is made.
_ON_GROUPS = (*LIVE, "initial_accumulator_value", "use_muon")


def _part_from_spectral_norms(model: torch.nn.Module) -> None:
    """torch.nn.utils.spectral_norm leaves a tensor beside the parameter that has its memory, or a graph that holds it,
    until the next forward computes it anew: gives the module one of its own."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                setattr(module, hook.name, getattr(module, hook.name).detach().clone())


class Builder:
    """What initialize() knows on the way to an engine of `kind`. build() is *collective*."""

    def __init__(
        self, kind: type[Engine], model: torch.nn.Module, config: Config, optimizer: Any, parameters: Any
    ) -> None:
        self.kind = kind
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

    def build(self) -> Engine:
        if not self._trains:
            trained_by = self._trained_by()
            if trained_by is not None:
                return self._make(trained_by._core, None, trained_by)
        self.device = life_cycle.take_over(self.model)
        self.flags = life_cycle.Flags(self.model)
        try:
            engine = self._make_new()
        except BaseException:
            self.flags.restore()
            raise
        self._warn_of_rounded_values()
        return engine

    def _warn_of_rounded_values(self) -> None:
        """state_dict() reads parameters as operators do."""
        keys = ("zero_quantized_weights", "zero_quantized_nontrainable_weights")
        wanted = [key for key in keys if self.config.setting(f"zero_optimization.{key}", False)]
        if not wanted:
            return

        def warn(_module: torch.nn.Module, _prefix: str, _keep_vars: bool) -> None:
            logger.warning(
                "state_dict(): with %s it has rounded values; save_checkpoint(), save_16bit_model() and "
                "zero.GatheredParameters have the exact ones",
                wanted[0],
            )
            handle.remove()  # once

        handle = self.model.register_state_dict_pre_hook(warn)  # type: ignore[no-untyped-call]

    @property
    def _trains(self) -> bool:
        return self.client is not None or self.config.names_optimizer or bool(self.given)

    def _make_new(self) -> Engine:
        self.config = self.config.for_module(self.model)
        partition.finish(self.model)
        self.device = self.device or self.kind.place(self.model, world_group().local_rank)
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
        self, core: _C.Engine, optimizer: ZeroOptimizer | None, trained_by: Trained | None = None
    ) -> Engine:
        log_dist(
            f"DeepSpeed info: version={__version__} (zerotorch), stage {self.config.stage}, {core.world_size} ranks",
            ranks=[0],
        )
        return self.kind(self.model, core, self.config, optimizer, None, self.names, self.flags, trained_by)

    def _for_evaluation(self) -> Engine:
        config = self.config.without("optimizer", "scheduler")
        core = _C.initialize(self.model, config, world_group(), [], True, device=self.device)
        self.flags.restore()  # the program may train them with another engine, or with none
        return self._make(core, None)

    def _trained_by(self) -> Trained | None:
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

    def _with_configured(self) -> Engine:
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
        optimizer = self.kind.optimizer_class(section["type"], offloaded)(facade, defaults, None, section["type"])
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

    def _with_client(self, client: torch.optim.Optimizer) -> Engine:
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
        optimizer = self._of_client(client, kind)
        optimizer.attach(core, self.names, _numbers_of(client.param_groups))
        return self._make(core, optimizer)

    def _of_client(self, client: torch.optim.Optimizer, name: str) -> ZeroOptimizer:
        return self.kind.optimizer_class(None, False)(client.param_groups, dict(client.defaults), client, name)

    def _over_shards(self, client: torch.optim.Optimizer) -> Engine:
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
        optimizer = self._of_client(client, name)
        optimizer.attach(core, self.names, _numbers_of(client.param_groups), made[0])
        return self._make(core, optimizer)


def _numbers_of(groups: list[dict[str, Any]]) -> list[int | None]:
    """The engine's numbers of a client's groups: it gets no empty ones."""
    numbers = iter(range(len(groups)))
    return [next(numbers) if group["params"] else None for group in groups]


def _as_list(parameters: Any) -> list[Any]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
