"""Figures of a program's own, into the files that the engine writes its into, and DeepSpeed's monitors by class."""

from __future__ import annotations

import abc
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from zerotorch.core.ranks import rank
from zerotorch.errors import NotBuiltError

from ..runtime.sections import DeepSpeedMonitorConfig, get_monitor_config

Event = tuple[str, Any, int]
"""Name, value, step."""


class Monitor(abc.ABC):
    """Something that events are written to."""

    def __init__(self, monitor_config: Any) -> None:
        self.monitor_config = monitor_config

    @abc.abstractmethod
    def write_events(self, event_list: Iterable[Event]) -> None:
        """Appends events. Local."""


class csvMonitor(Monitor):  # noqa: N801  # DeepSpeed's name
    """`output_path`/`job_name`/`name`.csv on rank 0, where enabled."""

    def __init__(self, csv_config: Any) -> None:
        super().__init__(csv_config)
        self.enabled = csv_config.enabled
        self.output_path = csv_config.output_path
        self.job_name = csv_config.job_name
        self.log_dir = pathlib.Path(self.output_path or ".", self.job_name)

    def write_events(self, event_list: Iterable[Event]) -> None:
        if not self.enabled or rank() != 0:
            return
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for name, value, step in event_list:
            file = self.log_dir / (name.replace("/", "_").replace(" ", "_") + ".csv")
            header = "" if file.exists() else f"step,{name.rpartition('/')[2]}\n"
            with file.open("a") as rows:
                rows.write(f"{header}{step},{float(value)}\n")


class TensorBoardMonitor(Monitor):
    """Writes to `output_path`/`job_name` on rank 0, where enabled, with the package tensorboard."""

    def __init__(self, tensorboard_config: Any) -> None:
        super().__init__(tensorboard_config)
        self.enabled = tensorboard_config.enabled
        self.output_path = tensorboard_config.output_path
        self.job_name = tensorboard_config.job_name
        self.summary_writer: Any = None
        self.get_summary_writer()

    def get_summary_writer(self) -> Any:
        """torch's writer; None on other ranks and where it is not enabled."""
        if self.enabled and self.summary_writer is None and rank() == 0:
            from torch.utils.tensorboard import SummaryWriter

            self.summary_writer = SummaryWriter(str(pathlib.Path(self.output_path or ".", self.job_name)))
        return self.summary_writer

    def write_events(self, event_list: Iterable[Event], flush: bool = True) -> None:
        if self.summary_writer is None:
            return
        for event in event_list:
            self.summary_writer.add_scalar(*event)
        if flush:
            self.flush()

    def flush(self) -> None:
        if self.summary_writer is not None:
            self.summary_writer.flush()


class _Service(Monitor):
    """Does nothing where it is not enabled. Raises NotBuiltError where it is."""

    name: ClassVar[str]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.enabled = config.enabled
        if self.enabled:
            raise NotBuiltError(f"{self.name} is not built, it needs a service; use csv_monitor or tensorboard")

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Nothing."""


class CometMonitor(_Service):
    """Comet, whose monitor is not built."""

    name = "comet"


class WandbMonitor(_Service):
    """Wandb, whose monitor is not built."""

    name = "wandb"

    def __init__(self, wandb_config: Any) -> None:
        self.group, self.team, self.project = wandb_config.group, wandb_config.team, wandb_config.project
        super().__init__(wandb_config)


class MonitorMaster(Monitor):
    """Writes events as the `csv_monitor` and `tensorboard` sections of a configuration say, on rank 0.

    Raises NotBuiltError for `wandb` and `comet`, which need a service, and ImportError for `tensorboard` where the
    package of that name is missing. Local.
    """

    def __init__(self, monitor_config: Mapping[str, Any] | DeepSpeedMonitorConfig) -> None:
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
