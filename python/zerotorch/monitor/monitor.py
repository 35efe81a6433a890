"""Figures of a program's own, into the files that the engine writes its into."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any

from .config import DeepSpeedMonitorConfig, get_monitor_config

Event = tuple[str, Any, int]
"""Name, value, step."""


class Monitor(abc.ABC):
    """Something that events are written to."""

    def __init__(self, monitor_config: Any) -> None:
        self.monitor_config = monitor_config

    @abc.abstractmethod
    def write_events(self, event_list: Iterable[Event]) -> None:
        """Appends events. Local."""


class MonitorMaster(Monitor):
    """Writes events as the `csv_monitor` and `tensorboard` sections of a configuration say, on rank 0.

    Raises NotBuiltError for `wandb` and `comet`, which need a service, and ImportError for `tensorboard` where the
    package of that name is missing. Local.
    """

    def __init__(self, monitor_config: Mapping[str, Any] | DeepSpeedMonitorConfig) -> None:
        from .comet import CometMonitor
        from .csv_monitor import csvMonitor
        from .tensorboard import TensorBoardMonitor
        from .wandb import WandbMonitor

        sections = monitor_config if isinstance(monitor_config, DeepSpeedMonitorConfig) else _read(monitor_config)
        super().__init__(sections)
        self.enabled = sections.enabled
        self.tb_monitor = TensorBoardMonitor(sections.tensorboard)
        self.csv_monitor = csvMonitor(sections.csv_monitor)
        self.wandb_monitor = WandbMonitor(sections.wandb)
        self.comet_monitor = CometMonitor(sections.comet)

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Appends events. Local."""
        events = list(event_list)
        self.csv_monitor.write_events(events)
        self.tb_monitor.write_events(events)


def _read(sections: Mapping[str, Any]) -> DeepSpeedMonitorConfig:
    return get_monitor_config({name: value for name, value in sections.items() if isinstance(value, Mapping)})
