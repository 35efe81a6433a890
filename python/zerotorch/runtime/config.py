"""`deepspeed.runtime.config`: a configuration under DeepSpeed's names, and what programs give for one."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from zerotorch.core.config import Config
from zerotorch.core.ranks import rank, world_size
from zerotorch.errors import ConfigError, DeepSpeedConfigError

from .._modules import attach
from ..utils import leaf_modules
from .constants import GRADIENT_CLIPPING, GRADIENT_CLIPPING_DEFAULT, LOG_LEVEL, LOG_LEVEL_DEFAULT
from .sections import (
    DeepSpeedBF16Config,
    DeepSpeedFP16Config,
    DeepSpeedMonitorConfig,
    DeepSpeedZeroConfig,
    get_bfloat16_config,
    get_float16_config,
    get_monitor_config,
    get_zero_config,
)

__all__ = ["DeepSpeedConfig", "DeepSpeedConfigError"]

_STAGE_OF_SHARDED_PARAMETERS = 3

ADAGRAD_OPTIMIZER = "adagrad"
ADAM_OPTIMIZER = "adam"
ADAMW_OPTIMIZER = "adamw"
LAMB_OPTIMIZER = "lamb"
LION_OPTIMIZER = "lion"
MUON_OPTIMIZER = "muon"
# Not in DeepSpeed any more, and not built; older programs compare names with them.
ONEBIT_ADAM_OPTIMIZER = "onebitadam"
ONEBIT_LAMB_OPTIMIZER = "onebitlamb"
ZERO_ONE_ADAM_OPTIMIZER = "zerooneadam"
DEEPSPEED_OPTIMIZERS = [
    *(ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER),
    *("muadam", "muadamw", "musgd", LION_OPTIMIZER, MUON_OPTIMIZER),
]
TORCH_ADAM_PARAM = "torch_adam"
ADAM_W_MODE = "adam_w_mode"
ADAM_W_MODE_DEFAULT = True


class DeepSpeedConfig(Config):
    """A configuration, read and checked; see Config. Members are local. Objects of sections have what was given, and
    DeepSpeed's defaults."""

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        super().__init__(config)

    def for_module(self, model: torch.nn.Module) -> DeepSpeedConfig:
        """Another configuration, with zero_optimization.leaf_module.classes as names of modules. All modules that the
        section means are marked. Raises ConfigError for classes that the model has none of."""
        zero = self.raw.get("zero_optimization") or {}
        section = zero.get("leaf_module") or {}
        if self.stage < _STAGE_OF_SHARDED_PARAMETERS:
            return self
        # The engine knows these itself, and refuses what it does not find.
        leaf_modules.set_z3_leaf_modules_by_name(model, section.get("names") or (), raise_if_not_found=False)
        leaf_modules.set_z3_leaf_modules_by_suffix(model, section.get("name_suffixes") or (), raise_if_not_found=False)
        if not section.get("classes"):
            return self
        try:
            marked = {id(module) for module in leaf_modules.set_z3_leaf_modules(model, section["classes"])}
        except ValueError as error:
            raise ConfigError(f"zero_optimization.leaf_module.classes: {error}") from None
        names = [name for name, module in model.named_modules() if name and id(module) in marked]
        leaf = {**section, "classes": [], "names": [*(section.get("names") or []), *names]}
        return self.with_section("zero_optimization", {**zero, "leaf_module": leaf})

    @property
    def world_size(self) -> int:
        return world_size()

    @property
    def global_rank(self) -> int:
        return rank()

    @property
    def gradient_clipping(self) -> float:
        return float(self.resolved["gradient_clipping"])

    @property
    def gradient_allreduce_op(self) -> str:
        """ "mean" or "sum"."""
        return str(self.resolved["gradient_allreduce_op"]).lower()

    @property
    def zero_optimization_stage(self) -> int:
        return int(self.resolved["zero_optimization"]["stage"])

    @property
    def zero_enabled(self) -> bool:
        return self.zero_optimization_stage > 0

    @property
    def zero_config(self) -> DeepSpeedZeroConfig:
        sections = self._known("zero_optimization")
        if isinstance(sections.get("zero_optimization"), dict):  # without keys of older releases
            known = DeepSpeedZeroConfig.known_keys()
            section = {key: value for key, value in sections["zero_optimization"].items() if key in known}
            sections["zero_optimization"] = section
        return get_zero_config(sections)

    @property
    def float16_config(self) -> DeepSpeedFP16Config:
        return get_float16_config(self._known("fp16"))

    @property
    def bfloat16_config(self) -> DeepSpeedBF16Config:
        return get_bfloat16_config(self._known("bf16"))

    @property
    def monitor_config(self) -> DeepSpeedMonitorConfig:
        return get_monitor_config(self._known("tensorboard", "wandb", "csv_monitor", "comet"))

    def _known(self, *sections: str) -> dict[str, Any]:
        """Sections without what is left to its default."""
        return {name: _given(self.raw[name]) for name in sections if self.raw.get(name) is not None}

    @property
    def optimizer_params(self) -> Any:
        return (self.raw.get("optimizer") or {}).get("params")

    @property
    def scheduler_name(self) -> str | None:
        return (self.raw.get("scheduler") or {}).get("type")

    @property
    def scheduler_params(self) -> Any:
        return (self.raw.get("scheduler") or {}).get("params")

    @property
    def steps_per_print(self) -> Any:
        return self.resolved["steps_per_print"]

    @property
    def wall_clock_breakdown(self) -> bool:
        return bool(self.resolved["wall_clock_breakdown"])

    @property
    def _param_dict(self) -> dict[str, Any]:
        return self.raw


def _given(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {key: _given(value) for key, value in section.items() if value is not None and value != "auto"}


def given_config(args: Any, config: Any, config_params: Any) -> Any:
    """The one configuration among initialize()'s arguments. Raises ConfigError when there is none, or two."""
    of_args = None
    if args is not None:
        of_args = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    given = [one for one in (config, config_params) if one is not None]
    if len(given) == 2 and given[0] is not given[1]:
        raise ConfigError("initialize() got config and config_params, which are two names of one argument: give one")
    if given:
        if of_args is not None and of_args != given[0]:
            raise ConfigError(
                f"initialize() got a configuration and args with deepspeed_config ('{of_args}'), which are not the same: "
                "give one"
            )
        return given[0]
    if of_args is None:
        raise ConfigError(
            "initialize() got no configuration: pass config= (a dictionary or the path of a JSON file), or args with "
            "deepspeed_config"
        )
    return of_args


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds `--deepspeed` and `--deepspeed_config FILE`, and their old names with deepscale, to the parser. Local."""
    group = parser.add_argument_group("DeepSpeed", "Sharded training")
    for name in ("deepspeed", "deepscale"):
        group.add_argument(f"--{name}", action="store_true", help="for the program; zerotorch does not look at it")
        group.add_argument(f"--{name}_config", metavar="FILE", default=None, help="DeepSpeed JSON")
    return parser


def get_gradient_clipping(param_dict: dict[str, Any]) -> Any:
    """What a configuration says, else DeepSpeed's default. Local."""
    return param_dict.get(GRADIENT_CLIPPING, GRADIENT_CLIPPING_DEFAULT)


def get_log_level(param_dict: dict[str, Any]) -> Any:
    """What a configuration says, else None. Local."""
    return param_dict.get(LOG_LEVEL, LOG_LEVEL_DEFAULT)


__getattr__, __dir__ = attach(__name__)
