"""Curriculum learning's difficulty by step, for programs that truncate or choose their samples themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from zerotorch.core.log import logger
from zerotorch.errors import ConfigError, UsageError

_COUNTS = ("total_curriculum_step", "difficulty_step")
_NEEDED = {
    "fixed_discrete": ("difficulty", "max_step"),
    "fixed_linear": _COUNTS,
    "fixed_root": (*_COUNTS, "root_degree"),
    "custom": (),
}


class CurriculumScheduler:
    """The difficulty of a step, from `min_difficulty` to `max_difficulty`, as `schedule_type` says.

    "fixed_linear" and "fixed_root" rise for `total_curriculum_step` steps, in multiples of `difficulty_step`;
    "fixed_discrete" has `difficulty[i]` up to step `max_step[i]`, and its last one then; "custom" is a function of the
    program's. Raises ConfigError, which is an AssertionError, for keys that are missing. Local.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        _require(config, ("min_difficulty", "max_difficulty", "schedule_type"), "curriculum learning")
        kind = config["schedule_type"]
        if kind not in _NEEDED:
            raise ConfigError(f"schedule_type '{kind}' is none of {', '.join(_NEEDED)}")
        self.state = {key: config[key] for key in ("min_difficulty", "max_difficulty", "schedule_type")}
        self.state["current_difficulty"] = config["min_difficulty"]
        self.custom_get_difficulty: Callable[[int], Any] | None = None
        if kind == "custom":
            return
        schedule = config.get("schedule_config", {})
        _require(schedule, _NEEDED[kind], f"a {kind} schedule")
        self.state["schedule_config"] = schedule
        if kind == "fixed_discrete":
            if not schedule["max_step"] or len(schedule["difficulty"]) != len(schedule["max_step"]) + 1:
                raise ConfigError("a fixed_discrete schedule has one difficulty more than values of max_step")
        elif schedule["difficulty_step"] % 8:
            logger.warning("difficulty_step is no multiple of 8: lengths that are none are slow on tensor cores")

    def set_custom_get_difficulty(self, schedule_function: Callable[[int], Any]) -> None:
        self.custom_get_difficulty = schedule_function

    def get_current_difficulty(self) -> Any:
        return self.state["current_difficulty"]

    def set_current_difficulty(self, difficulty: Any) -> None:
        self.state["current_difficulty"] = difficulty

    def get_state(self) -> dict[str, Any]:
        return self.state

    def set_state(self, state: dict[str, Any]) -> None:
        self.state = state

    def get_difficulty(self, global_steps: int) -> Any:
        """Of a step."""
        kind = self.state["schedule_type"]
        if kind == "custom":
            if self.custom_get_difficulty is None:
                raise UsageError("a custom schedule needs set_custom_get_difficulty() first")
            return self.custom_get_difficulty(global_steps)
        schedule = self.state["schedule_config"]
        if kind == "fixed_discrete":
            steps = schedule["max_step"]
            passed = next((index for index, last in enumerate(steps) if global_steps <= last), len(steps))
            return schedule["difficulty"][passed]
        return self._rising(global_steps, 1 if kind == "fixed_linear" else schedule["root_degree"])

    def update_difficulty(self, global_steps: int) -> Any:
        """The difficulty of a step, which becomes the current one unless that is the largest already."""
        if self.state["current_difficulty"] < self.state["max_difficulty"]:
            self.state["current_difficulty"] = self.get_difficulty(global_steps)
        return self.state["current_difficulty"]

    def _rising(self, global_steps: int, root_degree: float) -> int:
        low, high = self.state["min_difficulty"], self.state["max_difficulty"]
        total, step = (self.state["schedule_config"][key] for key in _COUNTS)
        wanted = math.floor((global_steps / total) ** (1.0 / root_degree) * (high - low) + low)
        first = -(-low // step) * step  # the first multiple that is not below the start
        return int(min(max(wanted - wanted % step, first), high))


def _require(section: dict[str, Any], keys: tuple[str, ...], what: str) -> None:
    missing = [key for key in keys if key not in section]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}")
