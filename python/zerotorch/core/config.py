"""DeepSpeed's configuration: from what programs pass to the JSON text that the engine reads."""

from __future__ import annotations

import base64
import importlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import torch

from zerotorch import _C
from zerotorch.core.precision import autocast_dtype
from zerotorch.core.ranks import world_size
from zerotorch.errors import ConfigError

#: Sections in which "auto" is a value.
_WITH_OWN_AUTO = ("zerotorch", "pipeline")

#: Keys that Python reads itself.
_OF_PYTHON = (
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "managed_gradient_accumulation"),
    "torch_autocast",
)

Self = TypeVar("Self", bound="Config")


class Config:
    """A configuration, read and checked.

    Args:
        config: a dictionary, the path of a file of JSON (comments are allowed) or, with the library hjson, of Hjson, or JSON
            in base64.

    Raises:
        ConfigError: naming every key that is wrong, and why.
    """

    def __init__(self, config: Any, mpu: Any = None, mesh_device: Any = None) -> None:
        self.raw, self.source = read(config)
        if isinstance(self.raw.get("zero_optimization"), bool):
            raise ConfigError(
                'zero_optimization: true and false are of old versions of DeepSpeed; write {"stage": 1} for true, and leave '
                "it out for false"
            )
        self.resolved: dict[str, Any] = json.loads(_C.resolve_config(_to_text(self.raw), self.source))
        self._check_accumulation()
        self.autocast_dtype = autocast_dtype(self.raw, self.param_dtype)

    @property
    def stage(self) -> int:
        return int(self.resolved["zero_optimization"]["stage"])

    @property
    def allows_untested_optimizer(self) -> bool:
        return bool(self.raw.get("zero_allow_untested_optimizer", False))

    @property
    def names_optimizer(self) -> bool:
        section = self.raw.get("optimizer")
        return isinstance(section, dict) and section.get("type") is not None

    @property
    def names_scheduler(self) -> bool:
        section = self.raw.get("scheduler")
        return isinstance(section, dict) and section.get("type") is not None

    @property
    def optimizer_name(self) -> str | None:
        """In small letters, as DeepSpeed compares it."""
        kind = (self.raw.get("optimizer") or {}).get("type")
        return None if kind is None else str(kind).lower()

    @property
    def tag_validation(self) -> str:
        """What save_checkpoint() does where ranks give different tags: "ignore", "warn" or "fail"."""
        return str((self.raw.get("checkpoint") or {}).get("tag_validation", "Warn")).lower()

    def without(self, *sections: str) -> str:
        """The text, as the engine gets it, without some sections."""
        raw = self.raw if self.manages_accumulation else self._with_one_micro_batch()
        return _to_text({key: value for key, value in raw.items() if key not in sections})

    @property
    def manages_accumulation(self) -> bool:
        """False: the program's step() ends an accumulation window, however many backwards it has."""
        return self.raw.get("managed_gradient_accumulation") is not False

    def _check_accumulation(self) -> None:
        given = self.raw.get("managed_gradient_accumulation")
        if given is not None and not isinstance(given, bool):
            raise ConfigError(f"managed_gradient_accumulation: {given!r} is neither true nor false")
        if not self.manages_accumulation and self.updates_in_backward:
            raise ConfigError(
                "managed_gradient_accumulation: false, and zerotorch.update \"in_backward\" updates in every backward: "
                "change one of them"
            )

    def _with_one_micro_batch(self) -> dict[str, Any]:
        """For an engine whose windows have one micro-batch each, of any number of backwards."""
        total, micro, steps = self._batch()
        ranks = world_size()
        if micro * steps * ranks != total:
            raise ConfigError(
                f"train_batch_size is {total}, and train_micro_batch_size_per_gpu ({micro}) times "
                f"gradient_accumulation_steps ({steps}) times {ranks} ranks is {micro * steps * ranks}"
            )
        return {
            **self.raw,
            "train_batch_size": None,
            "train_micro_batch_size_per_gpu": micro,
            "gradient_accumulation_steps": 1,
        }

    def with_section(self: Self, name: str, section: dict[str, Any]) -> Self:
        """Another configuration, with this section in place of its own."""
        return type(self)({**self.raw, name: section})

    def for_module(self: Self, model: torch.nn.Module) -> Self:
        """The configuration for this module: one that names classes of modules has to look them up. Local."""
        return self

    def setting(self, path: str, default: Any = None) -> Any:
        """A value by its path: as the engine has read it, else as it was given."""
        for there in (self.resolved, self.raw):
            for key in path.split("."):
                there = there.get(key) if isinstance(there, dict) else None  # type: ignore[assignment]
            if there is not None:
                return there
        return default

    def _batch(self) -> tuple[int, int, int]:
        """Samples of an update, samples of a micro-batch, and micro-batches of an update: from those that are given."""
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        total, micro, steps = (self.resolved.get(name) for name in names)
        ranks = world_size()
        if total is None:
            micro, steps = micro or 1, steps or 1
            return micro * steps * ranks, micro, steps
        if micro is None:
            steps = steps or 1
            return total, total // ranks // steps, steps
        return total, micro, steps or total // micro // ranks

    @property
    def train_batch_size(self) -> int:
        return self._batch()[0]

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        return self._batch()[1]

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._batch()[2]

    @property
    def param_dtype(self) -> torch.dtype:
        if self.resolved["fp16"]["enabled"]:
            return torch.float16
        return torch.bfloat16 if self.resolved["bf16"]["enabled"] else torch.float32

    @property
    def updates_in_backward(self) -> bool:
        return bool(self.resolved["zerotorch"]["update"] == "in_backward")

    @property
    def delays_updates(self) -> bool:
        return bool(self.resolved["zerotorch"]["update"] == "delayed")

    @property
    def refuses_writes(self) -> bool:
        """Updates run while the program does, so that it may write parameters in a GatheredParameters only."""
        return self.updates_in_backward or self.delays_updates

    @property
    def checks_writes(self) -> bool:
        """Writes into parameters that would be forgotten are errors."""
        return bool(self.setting("zero_optimization.enable_sanity_checks", False))

    @property
    def logs_comms(self) -> bool:
        return bool(self.resolved.get("comms_logger", {}).get("enabled", False))

    @property
    def auto_casts(self) -> bool:
        return bool(self.resolved["fp16"]["enabled"] and self.resolved["fp16"]["auto_cast"])


def read(config: Any) -> tuple[dict[str, Any], str]:
    if isinstance(config, Config):
        return config.raw, config.source
    if isinstance(config, dict):
        return config, "config"
    if not isinstance(config, (str, os.PathLike)):
        raise ConfigError(f"a configuration is a dictionary or the path of a JSON file, not a {type(config).__name__}")
    path = Path(config)
    try:
        is_file = path.exists()
    except OSError:  # too long for a name: text
        is_file = False
    if is_file:
        return _parse(path.read_text(encoding="utf-8-sig"), str(path)), str(path)
    text = str(config)
    try:
        return _parse(base64.urlsafe_b64decode(text).decode(), "config"), "config"
    except (ValueError, UnicodeDecodeError) as error:
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(f"there is no configuration file '{text}'")


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        raw = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError:
        try:
            raw = json.loads(_without_comments(text), object_pairs_hook=_without_duplicates)
        except json.JSONDecodeError as error:
            raw = _from_hjson(text, f"{source}:{error.lineno}: not valid JSON: {error.msg}")
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: a configuration is a JSON object")
    return raw


def _from_hjson(text: str, why_no_json: str) -> Any:
    """Files with keys or strings that have no quotes, which DeepSpeed reads by the library hjson. Not tried first: it
    takes what is left of a broken JSON file for a string."""
    try:
        hjson: Any = importlib.import_module("hjson")
    except ImportError:
        raise ConfigError(f"{why_no_json}. If it is meant to be Hjson: pip install hjson") from None
    try:
        return hjson.loads(text, object_pairs_hook=_without_duplicates)
    except hjson.HjsonDecodeError as error:
        raise ConfigError(f"{why_no_json}; nor is it Hjson: {error}") from None


_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/\*.*?\*/|,(?=\s*[}\]])', re.DOTALL)


def _without_comments(text: str) -> str:
    """The same lines without comments and trailing commas."""

    def keep(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else "\n" * match[0].count("\n")

    without_comments = _STRING_OR_COMMENT.sub(keep, text)
    return _STRING_OR_COMMENT.sub(keep, without_comments)  # commas that stood before a comment


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"the configuration has the key '{key}' twice")
    return dict(pairs)


def _to_text(raw: dict[str, Any]) -> str:
    left = {key: value for key, value in raw.items() if key not in _OF_PYTHON}
    if isinstance(left.get("data_types"), dict):
        left["data_types"] = {key: value for key, value in left["data_types"].items() if key != "buffer_dtype"}
    if left.get("steps_per_print") == math.inf:
        left["steps_per_print"] = 10**12
    if isinstance(left.get("zero_optimization"), dict):
        if left["zero_optimization"].get("enable_sanity_checks") is True:  # the slow checks of the engine
            left["zerotorch"] = {"debug_observer": True, **(left.get("zerotorch") or {})}
        dotted = _dotted(left, "zero_optimization")
        left["zero_optimization"] = {**dotted, **_without_auto(left["zero_optimization"])}
    _check_values(left, "")
    return json.dumps(left)


def _dotted(raw: dict[str, Any], section: str) -> dict[str, Any]:
    """Takes sizes such as "zero_optimization.reduce_bucket_size", which trl computes for a reference model, out of
    `raw`."""
    found = {name: raw.pop(name) for name in list(raw) if isinstance(name, str) and name.startswith(f"{section}.")}
    return {
        name.partition(".")[2]: int(value) if isinstance(value, float) and math.isfinite(value) else value
        for name, value in found.items()
    }


def _without_auto(section: dict[str, Any]) -> dict[str, Any]:
    """Sizes and places that are left to whoever reads them, as trl gives them to an engine of its own: not given. No
    result depends on them. The stage has to be said."""
    return {
        key: _without_auto(value) if isinstance(value, dict) else value
        for key, value in section.items()
        if value != "auto" or key == "stage"
    }


def _check_values(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_values(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            _check_values(inner, f"{path}[{i}]")
    elif value == "auto" and path.split(".")[0] not in _WITH_OWN_AUTO:
        raise ConfigError(
            f'{path}: "auto" is filled in by Hugging Face\'s Trainer or accelerate; give a value here, or leave it out'
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}: {value} is no number that JSON has")
    elif value is not None and not isinstance(value, (str, int, float, bool)):
        raise ConfigError(f"{path}: a {type(value).__name__} is no value that JSON has")
