"""DeepSpeed's learning-rate schedules over any torch optimizer, with DeepSpeed's numbers to the bit.

Programs change attributes of a schedule and override its methods, so these are computed here and not by the engine, whose
schedules have the same numbers.

A schedule is constructed before the first update and stepped after each one. As DeepSpeed counts, the update that
follows construction has iteration -1, whose rate is the schedule's own start, and the first `step` sets that of
iteration 0.
Everything is local.
"""

import abc
import argparse
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from zerotorch.core.log import logger
from zerotorch.errors import UsageError

Rates = float | Sequence[float]

LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST = "LRRangeTest"
ONE_CYCLE = "OneCycle"
WARMUP_LR = "WarmupLR"
WARMUP_DECAY_LR = "WarmupDecayLR"
WARMUP_COSINE_LR = "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
WARMUP_LOG_RATE = "log"
WARMUP_LINEAR_RATE = "linear"
EDGE_VALUE = "edge_value"
MID_VALUE = "mid_value"
TOTAL_NUM_STEPS = "total_num_steps"

#: Options of DeepSpeed's tuning runs, which are parameters of schedules; each name is a constant as well.
_TUNING: dict[str, Any] = {
    "lr_range_test_min_lr": 0.001,
    "lr_range_test_step_rate": 1.0,
    "lr_range_test_step_size": 1000,
    "lr_range_test_staircase": False,
    "cycle_first_step_size": 1000,
    "cycle_first_stair_count": -1,
    "cycle_second_step_size": -1,
    "cycle_second_stair_count": -1,
    "decay_step_size": 1000,
    "cycle_min_lr": 0.01,
    "cycle_max_lr": 0.1,
    "decay_lr_rate": 0.0,
    "cycle_momentum": False,
    "cycle_min_mom": 0.8,
    "cycle_max_mom": 0.9,
    "decay_mom_rate": 0.0,
    "warmup_min_lr": 0.0,
    "warmup_max_lr": 0.001,
    "warmup_num_steps": 1000,
    "warmup_type": "log",
    "warmup_min_ratio": 0.01,
    "cos_min_ratio": 0.01,
}
globals().update({name.upper(): name for name in _TUNING if name != "cycle_momentum"})

_BETA2 = 0.99  # of OneCycle, as in DeepSpeed


class _Schedule(LRScheduler, abc.ABC):
    """A torch schedule for isinstance. torch's constructor is not run: it steps once and wraps `optimizer.step`."""

    def __init__(self, optimizer: Any, last_batch_iteration: int) -> None:
        self.optimizer = get_torch_optimizer(optimizer)
        self.last_batch_iteration = last_batch_iteration

    @abc.abstractmethod
    def get_lr(self) -> list[Any]:
        """The rate of each parameter group at `last_batch_iteration`."""

    def get_last_lr(self) -> list[Any]:
        """The rates that were set last. Raises UsageError where none was."""
        if not hasattr(self, "_last_lr"):
            raise UsageError("need to call step() first")
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a saved iteration; the optimizer's rates, which are in its own state, stay."""
        self.last_batch_iteration = state_dict["last_batch_iteration"]

    def _go_to(self, iteration: int | None) -> None:
        self.last_batch_iteration = self.last_batch_iteration + 1 if iteration is None else iteration
        self._set(self.get_lr())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):  # groups that were added keep theirs
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _by_group(self, value: Rates, name: str) -> list[float]:
        groups = len(self.optimizer.param_groups)
        if not isinstance(value, (list, tuple)):
            return [value] * groups  # type: ignore[list-item]
        if len(value) != groups:
            raise ValueError(f"expected {groups} values of {name}, one for each parameter group, got {len(value)}")
        return list(value)


class _Warmup(_Schedule):
    """What schedules with a warm-up share: the part of it that is done."""

    def __init__(self, optimizer: Any, warmup_num_steps: int, warmup_type: str, last_batch_iteration: int) -> None:
        super().__init__(optimizer, last_batch_iteration)
        _require_count("warmup_num_steps", warmup_num_steps)
        if warmup_type not in ("log", "linear"):
            logger.warning(f"warmup_type {warmup_type} is neither log nor linear; log is used")
            warmup_type = "log"
        self.warmup_type = warmup_type
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.inverse_log_warm_up = 1.0 / math.log(self.warmup_num_steps)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Sets the rates of the next iteration, or of the one that is given."""
        self._go_to(last_batch_iteration)

    def _is_warming_up(self) -> bool:
        return self.last_batch_iteration < self.warmup_num_steps

    def _warmup_part(self) -> float:
        if self.warmup_type == "linear":
            return self.last_batch_iteration / self.warmup_num_steps
        return self.inverse_log_warm_up * math.log(self.last_batch_iteration + 1)

    def _has_started(self) -> bool:
        if self.last_batch_iteration < 0:
            logger.warning("a schedule was asked for its learning rate before its first step")
        return self.last_batch_iteration >= 0

    def _warn_of_short_run(self, total_num_steps: int) -> None:
        if total_num_steps < self.warmup_num_steps:
            logger.warning(f"total_num_steps {total_num_steps} is less than warmup_num_steps {self.warmup_num_steps}")


class WarmupLR(_Warmup):
    """From `warmup_min_lr` to `warmup_max_lr` in `warmup_num_steps` steps (at least 2), and constant then.

    Both may be lists with a rate for each parameter group; without a maximum it is the optimizer's rate. `warmup_type`
    is "log" or "linear". `last_batch_iteration` other than -1 goes on from there and sets nothing. Raises ValueError
    for a count that is not positive and for lists of another length, and TypeError without a torch optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: Rates = 0.0,
        warmup_max_lr: Rates | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.min_lrs = self._by_group(warmup_min_lr, "warmup_min_lr")
        self.max_lrs = self._by_group(warmup_max_lr, "warmup_max_lr")
        self.delta_lrs = [high - low for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]
        if last_batch_iteration == -1:
            self._set(self.min_lrs)

    def get_lr(self) -> list[Any]:
        if not self._has_started():
            return self.min_lrs
        gamma = self._get_gamma()
        return [low + delta * gamma for low, delta in zip(self.min_lrs, self.delta_lrs, strict=True)]

    def _get_gamma(self) -> float:
        """How far the rate is from its minimum to its maximum. Programs override it."""
        return self._warmup_part() if self._is_warming_up() else self._part_after_warmup()

    def _part_after_warmup(self) -> float:
        return 1.0


class WarmupDecayLR(WarmupLR):
    """`WarmupLR`, and then down to `warmup_min_lr` on a line that ends at `total_num_steps`. The maximum is 0.001."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: Rates = 0.0,
        warmup_max_lr: Rates | None = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)
        self._warn_of_short_run(total_num_steps)

    def _part_after_warmup(self) -> float:
        left = float(self.total_num_steps - self.last_batch_iteration)
        return max(0.0, left / max(1.0, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(_Warmup):
    """The optimizer's rates times a ratio: from `warmup_min_ratio` up to 1 and on half a cosine to `cos_min_ratio`.

    The warm-up is that of `WarmupLR`; the first update has rate 0. After `total_num_steps` the ratio stays.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        self.total_num_steps = total_num_steps
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        self._warn_of_short_run(total_num_steps)
        self.org_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        if last_batch_iteration == -1:
            self._set([0.0] * len(self.org_lrs))

    def get_lr_ratio(self) -> float:
        """What the optimizer's rates are multiplied with at `last_batch_iteration`."""
        if not self._has_started():
            return 0.0
        if self._is_warming_up():
            return self.warmup_min_ratio + self._warmup_part() * (1.0 - self.warmup_min_ratio)
        done = self.last_batch_iteration - self.warmup_num_steps + 1
        progress = min(1.0, done / max(1, self.total_num_steps - self.warmup_num_steps))
        height = (1 + math.cos(math.pi * progress)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * height)

    def get_lr(self) -> list[Any]:
        ratio = self.get_lr_ratio()
        return [rate * ratio for rate in self.org_lrs]


class LRRangeTest(_Schedule):
    """A rate that grows by `lr_range_test_step_rate` times the first one in every interval of steps.

    The first rate may be a list with one for each parameter group. With `lr_range_test_staircase` it grows at the end
    of an interval only. Raises ValueError for an interval that is not a positive whole number.
    """

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: Rates = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        _require_count("lr_range_test_step_size", lr_range_test_step_size)
        self.min_lr = self._by_group(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = lr_range_test_step_size
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        if last_batch_iteration == -1:
            self._set(self.min_lr)

    def get_lr(self) -> list[Any]:
        increase = self._get_increase()
        return [rate * increase for rate in self.min_lr]

    def _get_increase(self) -> float:
        """The factor of the first rates. Programs override it."""
        interval = float(self.last_batch_iteration + 1) / self.step_size
        return 1 + self.step_rate * (math.floor(interval) if self.staircase else interval)

    def step(self, batch_iteration: int | None = None) -> None:
        """Sets the rates of the next iteration, or of the one that is given."""
        self._go_to(batch_iteration)


class OneCycle(_Schedule):
    """Up from `cycle_min_lr` to `cycle_max_lr` and down again, and then a decay.

    The first beta of optimizers with `betas` goes the other way, from `cycle_max_mom` to `cycle_min_mom` and back, and
    the second is 0.99, unless `cycle_momentum` is false. Rates and momenta may be lists with one for each parameter
    group. Stairs make each half of the cycle that many jumps; 0: none. n times `decay_step_size` steps after the cycle
    the rate is cycle_min_lr / (1 + n * decay_lr_rate) and the first beta cycle_max_mom * (1 + n * decay_mom_rate).
    Raises ValueError for lists of another length and halves of no steps.
    """

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: Rates,
        cycle_max_lr: Rates,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: Rates = 0.8,
        cycle_max_mom: Rates = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        if cycle_second_step_size is None:
            cycle_second_step_size = cycle_first_step_size
        self.first_step_size = float(cycle_first_step_size)
        self.second_step_size = float(cycle_second_step_size)
        if self.first_step_size <= 0:
            raise ValueError(f"cycle_first_step_size must be positive, got {cycle_first_step_size}")
        if self.second_step_size < 0:
            raise ValueError(f"cycle_second_step_size must not be negative, got {cycle_second_step_size}")
        self.total_size = self.first_step_size + self.second_step_size
        self.step_ratio = self.first_step_size / self.total_size
        if cycle_second_stair_count is None:
            cycle_second_stair_count = cycle_first_stair_count
        self.first_stair_count = cycle_first_stair_count
        self.second_stair_count = cycle_second_stair_count
        self.decay_step_size = decay_step_size
        self.decay_lr_rate = decay_lr_rate
        self.decay_mom_rate = decay_mom_rate
        self.min_lrs = self._by_group(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self._by_group(cycle_max_lr, "cycle_max_lr")
        self.min_moms = self._by_group(cycle_min_mom, "cycle_min_mom")
        self.max_moms = self._by_group(cycle_max_mom, "cycle_max_mom")
        self.cycle_momentum = cycle_momentum and self._has_betas()
        if last_batch_iteration == -1:
            self._set(self.min_lrs)
            self._set_momentum(self.min_moms)

    def get_lr(self) -> list[Any]:
        if self._is_in_cycle():
            height = self._height()
            return [low + (high - low) * height for low, high in zip(self.min_lrs, self.max_lrs, strict=True)]
        decay = self._decay(self.decay_lr_rate)
        return [low / decay for low in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each parameter group at `last_batch_iteration`; None where they are not cycled."""
        return [(beta, _BETA2) for beta in self._first_betas()] if self.cycle_momentum else None

    def step(self, batch_iteration: int | None = None) -> None:
        """Sets rates and betas of the next iteration, or of the one that is given."""
        self._go_to(batch_iteration)
        self._set_momentum(self._first_betas())

    def _first_betas(self) -> list[float]:
        if self._is_in_cycle():
            height = self._height()
            return [high - (high - low) * height for low, high in zip(self.min_moms, self.max_moms, strict=True)]
        decay = self._decay(self.decay_mom_rate)
        return [high * decay for high in self.max_moms]

    def _set_momentum(self, first_betas: list[float]) -> None:
        if self.cycle_momentum:
            for group, beta in zip(self.optimizer.param_groups, first_betas, strict=False):
                group["betas"] = (beta, _BETA2, *group["betas"][2:])

    def _has_betas(self) -> bool:
        if "betas" not in self.optimizer.defaults:
            logger.warning(f"{type(self.optimizer).__name__} has no betas: cycle_momentum is off")
            return False
        return True

    def _is_in_cycle(self) -> bool:
        return self.last_batch_iteration < self.total_size

    def _height(self) -> float:
        """0 at the ends of the cycle, 1 at its top."""
        iteration = self.last_batch_iteration + 1
        place = 1.0 + iteration / self.total_size - math.floor(1 + iteration / self.total_size)
        rises = place <= self.step_ratio
        stairs = self.first_stair_count if rises else self.second_stair_count
        if stairs > 0:
            return self._stair(iteration % self.total_size, stairs) / stairs
        return place / self.step_ratio if rises else (place - 1) / (self.step_ratio - 1)

    def _stair(self, iteration: float, stairs: int) -> int:
        if iteration <= self.first_step_size:
            return math.floor(iteration * stairs / self.first_step_size)
        return math.floor((self.total_size - iteration) * stairs / self.second_step_size)

    def _decay(self, rate: float) -> float:
        if self.decay_step_size == 0 or rate == 0:
            return 1.0
        return 1 + rate * ((self.last_batch_iteration - self.total_size + 1) / self.decay_step_size)


def get_torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer that this is, or has as `.optimizer`. Raises TypeError where there is none."""
    for candidate in (optimizer, getattr(optimizer, "optimizer", None)):
        if isinstance(candidate, torch.optim.Optimizer):
            return candidate
    raise TypeError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer and has none")


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options of DeepSpeed's tuning runs, by the names of the schedules' parameters. Returns the parser."""
    group = parser.add_argument_group("schedules", "Learning rates of tuning runs")
    group.add_argument("--lr_schedule", type=str, default=None, help="LRRangeTest, OneCycle, WarmupLR and so on")
    for name, default in _TUNING.items():
        if isinstance(default, bool):
            group.add_argument(f"--{name}", action="store_true")
        else:
            group.add_argument(f"--{name}", type=type(default), default=default)
    return parser


def _require_count(name: str, value: int) -> None:
    if not isinstance(value, int) or value <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value}")
