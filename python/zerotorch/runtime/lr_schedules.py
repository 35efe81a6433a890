"""DeepSpeed's learning-rate schedules over any torch optimizer. Their numbers are those of the engine in C++, which has
DeepSpeed's to the bit.

A schedule is constructed before the first update and stepped after each one. As DeepSpeed counts, the update that
follows construction has iteration -1, whose rate is the schedule's own start, and the first `step` sets that of
iteration 0.
Everything is local.
"""

import argparse
import json
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.optim.lr_scheduler import LRScheduler

from zerotorch import _C
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


def _params(given: dict[str, Any]) -> dict[str, Any]:
    """Of a constructor's arguments those that a configuration has."""
    return {name: value for name, value in given.items() if name.startswith(("cycle", "decay", "lr_range"))}


class _Schedule(LRScheduler):
    """A torch schedule for isinstance. torch's constructor is not run: it steps once and wraps `optimizer.step`."""

    _kind: ClassVar[str]  # in a configuration

    def __init__(self, optimizer: Any, last_batch_iteration: int, params: dict[str, Any]) -> None:
        """`params`: of a configuration, by name, which become attributes; lists have a value for each parameter group."""
        self.optimizer = get_torch_optimizer(optimizer)
        self.last_batch_iteration = last_batch_iteration
        vars(self).update(params)
        self.org_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._params = {name: self._by_group(value, name) for name, value in params.items() if value is not None}
        self._schedules = [self._of_group(index) for index in range(len(self.org_lrs))]
        if last_batch_iteration == -1:
            self._set(self._rates())

    def get_lr(self) -> list[Any]:
        """The rate of each parameter group at `last_batch_iteration`."""
        return self._rates()

    def get_last_lr(self) -> list[Any]:
        """The rates that were set last. Raises UsageError where none was."""
        if not hasattr(self, "_last_lr"):
            raise UsageError("need to call step() first")
        return self._last_lr

    def step(self, last_batch_iteration: int | None = None, *, batch_iteration: int | None = None) -> None:
        """Sets the rates of the next iteration, or of the one that is given, under either name."""
        given = batch_iteration if last_batch_iteration is None else last_batch_iteration
        self.last_batch_iteration = self.last_batch_iteration + 1 if given is None else given
        self._set(self.get_lr())

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a saved iteration; the optimizer's rates, which are in its own state, stay."""
        self.last_batch_iteration = state_dict["last_batch_iteration"]

    def _rates(self) -> list[float]:
        updates = int(self.last_batch_iteration) + 1
        return [one.rate(rate, updates) for one, rate in zip(self._schedules, self.org_lrs, strict=True)]

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _of_group(self, index: int) -> _C.Schedule:
        params = {name: values[index] for name, values in self._params.items()}
        scheduler = {"type": self._kind, "params": params}
        return _C.Schedule(json.dumps({"train_batch_size": 1, "optimizer": {"type": "AdamW"}, "scheduler": scheduler}))

    def _by_group(self, value: Any, name: str) -> list[Any]:
        groups = len(self.org_lrs)
        if not isinstance(value, (list, tuple)):
            value = [value] * groups
        if len(value) != groups:
            raise ValueError(f"expected {groups} values of {name}, one for each parameter group, got {len(value)}")
        return [one if isinstance(one, (str, bool, int)) else float(one) for one in value]


class _Warmup(_Schedule):
    """What schedules with a warm-up share."""

    def __init__(
        self, optimizer: Any, last_batch_iteration: int, warmup_num_steps: int, warmup_type: str, **params: Any
    ) -> None:
        if not isinstance(warmup_num_steps, int) or warmup_num_steps <= 0:
            raise ValueError(f"warmup_num_steps must be a positive integer, got {warmup_num_steps}")
        if warmup_type not in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE):
            logger.warning(f"warmup_type {warmup_type} is neither log nor linear; log is used")
            warmup_type = WARMUP_LOG_RATE
        warmup_num_steps = max(2, warmup_num_steps)
        if "total_num_steps" in params:
            params["total_num_steps"] = total = math.ceil(params["total_num_steps"])
            if total < warmup_num_steps:
                logger.warning(f"total_num_steps {total} is less than warmup_num_steps {warmup_num_steps}")
        params.update(warmup_num_steps=warmup_num_steps, warmup_type=warmup_type)
        super().__init__(optimizer, last_batch_iteration, params)

    def get_lr(self) -> list[Any]:
        """The rate of each parameter group at `last_batch_iteration`."""
        if self.last_batch_iteration < 0:
            logger.warning("a schedule was asked for its learning rate before its first step")
        return self._rates()


class WarmupLR(_Warmup):
    """From `warmup_min_lr` to `warmup_max_lr` in `warmup_num_steps` steps (at least 2), and constant then.

    Both may be lists with a rate for each parameter group; without a maximum it is the optimizer's rate. `warmup_type`
    is "log" or "linear". `last_batch_iteration` other than -1 goes on from there and sets nothing. Raises ValueError
    for a count that is not positive and for lists of another length, and TypeError without a torch optimizer.
    """

    _kind = WARMUP_LR

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: Rates = 0.0,
        warmup_max_lr: Rates | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
        **more: Any,
    ) -> None:
        if warmup_max_lr is None:
            warmup_max_lr = [float(group["lr"]) for group in get_torch_optimizer(optimizer).param_groups]
        rates = {"warmup_min_lr": warmup_min_lr, "warmup_max_lr": warmup_max_lr}
        super().__init__(optimizer, last_batch_iteration, warmup_num_steps, warmup_type, **rates, **more)
        self.min_lrs, self.max_lrs = (self._params[name] for name in rates)


class WarmupDecayLR(WarmupLR):
    """`WarmupLR`, and then down to `warmup_min_lr` on a line that ends at `total_num_steps`. The maximum is 0.001."""

    _kind = WARMUP_DECAY_LR

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
        given = (warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)
        super().__init__(optimizer, *given, total_num_steps=total_num_steps)


class WarmupCosineLR(_Warmup):
    """The optimizer's rates times a ratio: from `warmup_min_ratio` up to 1 and on half a cosine to `cos_min_ratio`.

    The warm-up is that of `WarmupLR`; the first update has rate 0. After `total_num_steps` the ratio stays.
    """

    _kind = WARMUP_COSINE_LR

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
        params = {"warmup_min_ratio": warmup_min_ratio, "cos_min_ratio": cos_min_ratio}
        super().__init__(
            optimizer, last_batch_iteration, warmup_num_steps, warmup_type, total_num_steps=total_num_steps, **params
        )

    def get_lr_ratio(self) -> float:
        """What the optimizer's rates are multiplied with at `last_batch_iteration`."""
        return self._schedules[0].rate(1.0, int(self.last_batch_iteration) + 1)


class LRRangeTest(_Schedule):
    """A rate that grows by `lr_range_test_step_rate` times the first one in every interval of steps.

    The first rate may be a list with one for each parameter group. With `lr_range_test_staircase` it grows at the end
    of an interval only. Raises ValueError for an interval that is not a positive whole number.
    """

    _kind = LR_RANGE_TEST

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: Rates = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration, _params(locals()))
        self.min_lr, self.step_size = self._params["lr_range_test_min_lr"], lr_range_test_step_size
        self.step_rate, self.staircase = lr_range_test_step_rate, lr_range_test_staircase


class OneCycle(_Schedule):
    """Up from `cycle_min_lr` to `cycle_max_lr` and down again, and then a decay.

    The first beta of optimizers with `betas` goes the other way, from `cycle_max_mom` to `cycle_min_mom` and back, and
    the second is 0.99, unless `cycle_momentum` is false. Rates and momenta may be lists with one for each parameter
    group. Stairs make each half of the cycle that many jumps; 0: none. n times `decay_step_size` steps after the cycle
    the rate is cycle_min_lr / (1 + n * decay_lr_rate) and the first beta cycle_max_mom * (1 + n * decay_mom_rate).
    Raises ValueError for lists of another length and halves of no steps.
    """

    _kind = ONE_CYCLE

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
        params = _params(locals())
        if cycle_momentum and "betas" not in get_torch_optimizer(optimizer).defaults:
            logger.warning(f"{type(get_torch_optimizer(optimizer)).__name__} has no betas: cycle_momentum is off")
            params["cycle_momentum"] = False
        super().__init__(optimizer, last_batch_iteration, params)

    def get_mom(self) -> list[tuple[float, float]] | None:
        """The betas of each parameter group at `last_batch_iteration`; None where they are not cycled."""
        updates = int(self.last_batch_iteration) + 1
        betas = [betas for one in self._schedules if (betas := one.betas(updates)) is not None]
        return betas or None

    def _set(self, rates: Sequence[float]) -> None:
        super()._set(rates)
        for group, betas in zip(self.optimizer.param_groups, self.get_mom() or (), strict=False):
            group["betas"] = (*betas, *group["betas"][2:])


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
