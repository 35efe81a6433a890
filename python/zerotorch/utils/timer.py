"""Timers of programs, and the one that an engine has of its steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from zerotorch.core.log import log_dist, logger
from zerotorch.errors import UsageError

from ..accelerator import get_accelerator

FORWARD_MICRO_TIMER = "fwd_microstep"
FORWARD_GLOBAL_TIMER = "fwd"
BACKWARD_MICRO_TIMER = "bwd_microstep"
BACKWARD_GLOBAL_TIMER = "bwd"
BACKWARD_INNER_MICRO_TIMER = "bwd_inner_microstep"
BACKWARD_INNER_GLOBAL_TIMER = "bwd_inner"
BACKWARD_REDUCE_MICRO_TIMER = "bwd_allreduce_microstep"
BACKWARD_REDUCE_GLOBAL_TIMER = "bwd_allreduce"
STEP_MICRO_TIMER = "step_microstep"
STEP_GLOBAL_TIMER = "step"

_SHORTEST_S = 1e-6  # no division by the time of an empty step


class _Timer:
    """Seconds between start() and stop(), several times."""

    def __init__(self, name: str) -> None:
        self.name_ = name
        self.started_ = False
        self._start = 0.0
        self._times: list[float] = []

    def start(self) -> None:
        if self.started_:
            raise UsageError(f"{self.name_} timer has already been started")
        get_accelerator().synchronize()
        self._start = time.perf_counter()
        self.started_ = True

    def stop(self, reset: bool = False, record: bool = False) -> None:
        """With `reset` this time replaces the earlier ones."""
        if not self.started_:
            raise UsageError("timer is not started")
        get_accelerator().synchronize()
        if reset:
            self._times.clear()
        self._times.append(time.perf_counter() - self._start)
        self.started_ = False

    def reset(self) -> None:
        self.started_ = False
        self._times.clear()

    def elapsed(self, reset: bool = True) -> float:
        """Milliseconds in all; a running timer goes on."""
        running = self.started_
        if running:
            self.stop()
        total = sum(self._times) * 1000
        if reset:
            self.reset()
        if running:
            self.start()
        return total

    def mean(self) -> float:
        """Milliseconds, without the tenth of longest and of shortest times."""
        return trim_mean([1000 * one for one in self._times], 0.1)


class SynchronizedWallClockTimer:
    """Timers by name, which wait for the device: `timers("forward").start()`. Local."""

    Timer = _Timer

    def __init__(self) -> None:
        self.timers: dict[str, _Timer] = {}

    def __call__(self, name: str) -> _Timer:
        return self.timers.setdefault(name, _Timer(name))

    def get_timers(self) -> dict[str, _Timer]:
        return self.timers

    @staticmethod
    def memory_usage() -> str:
        accelerator = get_accelerator()
        now, peak = accelerator.memory_allocated() / 2**30, accelerator.max_memory_allocated() / 2**30
        return f" | mem_allocated: {now:.4f} GB | max_mem_allocated: {peak:.4f} GB"

    def log(
        self,
        names: Iterable[str],
        normalizer: float = 1.0,
        reset: bool = True,
        memory_breakdown: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Logs milliseconds, divided by `normalizer`, of the timers among these names that there are."""
        _require_positive(normalizer)
        found = {name: self.timers[name].elapsed(reset) / normalizer for name in names if name in self.timers}
        times = [f"{name}: {elapsed:.2f}" for name, elapsed in found.items()]
        log_dist("time (ms) | " + " | ".join(times) + (self.memory_usage() if memory_breakdown else ""), ranks or [0])

    def get_mean(self, names: Iterable[str], normalizer: float = 1.0, reset: bool = True) -> dict[str, float]:
        """Milliseconds by name."""
        _require_positive(normalizer)
        means = {}
        for name in names:
            if name in self.timers:
                means[name] = self.timers[name].mean() / normalizer
                if reset:
                    self.timers[name].reset()
        return means


class NoopTimer:
    """In place of SynchronizedWallClockTimer where nothing is timed."""

    class Timer:
        def start(self) -> None: ...
        def stop(self, **kwargs: Any) -> None: ...
        def reset(self) -> None: ...
        def elapsed(self, **kwargs: Any) -> float:
            return 0.0

        def mean(self) -> float:
            return 0.0

    def __call__(self, name: str) -> NoopTimer.Timer:
        return self.Timer()

    def get_timers(self) -> dict[str, Any]:
        return {}

    def log(self, names: Iterable[str], **kwargs: Any) -> None: ...
    def get_mean(self, names: Iterable[str], **kwargs: Any) -> dict[str, float]:
        return {}


class ThroughputTimer:
    """Samples per second, of steps after the first `start_step` ones.

    Attributes:
        epoch_count, micro_step_count, global_step_count: what was counted; micro-steps since the epoch began.
        total_elapsed_time: seconds of the micro-steps that were measured.
        initialized, started: whether a micro-step has begun since the timer was made, and whether one runs.
    """

    def __init__(
        self,
        config: Any = None,
        batch_size: int | None = None,
        start_step: int = 2,
        steps_per_output: float | None = None,
        monitor_memory: bool = False,
        logging_fn: Callable[[str], None] | None = None,
        *,
        synchronized: bool = True,
    ) -> None:
        """`config`: `.enabled` says whether it measures (None: it does), and `.synchronized` whether it waits for the
        device, as `synchronized` does."""
        self.synchronized = bool(getattr(config, "synchronized", synchronized))
        self.enabled = bool(getattr(config, "enabled", True))
        self.config = config
        self.batch_size = 1 if batch_size is None else batch_size
        self.start_step = start_step
        self.steps_per_output = steps_per_output
        self.monitor_memory = monitor_memory
        self.logging = logging_fn or logger.info
        self.initialized = self.started = False
        self.start_time = 0.0
        self.end_time = 0.0
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.total_elapsed_time = self.step_elapsed_time = 0.0

    def update_epoch_count(self) -> None:
        """Another epoch begins."""
        self.epoch_count += 1
        self.micro_step_count = 0

    def start(self) -> None:
        """A micro-step begins."""
        if not self.enabled:
            return
        self.initialized = self.started = True
        if self.global_step_count >= self.start_step:
            self.start_time = self._now()

    def stop(self, global_step: bool = False, report_speed: bool = True) -> None:
        """The micro-step has ended, and with `global_step` a step, which is logged every `steps_per_output` steps."""
        if not self.enabled or not self.started:
            return
        self.started = False
        self.micro_step_count += 1
        self.global_step_count += bool(global_step)
        if not self.start_time:
            return
        self.end_time = self._now()
        self.total_elapsed_time += self.end_time - self.start_time
        self.step_elapsed_time += self.end_time - self.start_time
        if global_step:
            if report_speed and self.steps_per_output and self.global_step_count % self.steps_per_output == 0:
                self._report()
            self.step_elapsed_time = 0.0

    def _now(self) -> float:
        if self.synchronized:
            get_accelerator().synchronize()
        return time.perf_counter()

    def _report(self) -> None:
        now = self.batch_size / (self.step_elapsed_time + _SHORTEST_S)
        self.logging(
            f"epoch={self.epoch_count}/micro_step={self.micro_step_count}/global_step={self.global_step_count}, "
            f"RunningAvgSamplesPerSec={self.avg_samples_per_sec()}, CurrSamplesPerSec={now}"
            + (SynchronizedWallClockTimer.memory_usage() if self.monitor_memory else "")
        )

    def avg_samples_per_sec(self) -> float:
        """Of the steps that were measured; minus infinity before the first of them has ended."""
        measured = self.global_step_count - self.start_step
        if measured <= 0 or not self.total_elapsed_time:
            return float("-inf")
        return self.batch_size * measured / self.total_elapsed_time


def trim_mean(data: Sequence[float], trim_percent: float) -> float:
    """The mean without this part, between 0 and 1, of the smallest and of the largest values; 0 for no data. Local."""
    if not 0.0 <= trim_percent <= 1.0:
        raise UsageError(f"trim_percent is between 0 and 1, not {trim_percent}")
    if not data:
        return 0
    dropped = round(len(data) * trim_percent)
    return statistics.mean(sorted(data)[dropped : len(data) - dropped])


def _require_positive(normalizer: float) -> None:
    if normalizer <= 0:
        raise UsageError(f"normalizer must be positive, got {normalizer}")
