"""Figures of a program's own, into the files that the engine writes its into."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ..comm import get_rank
from ..errors import NotBuiltError

Event = tuple[str, Any, int]
"""Name, value, step."""


class MonitorMaster:
    """Writes events as the `csv_monitor` and `tensorboard` sections of a configuration say, on rank 0.

    Raises NotBuiltError for `wandb` and `comet`, which need a service, and ImportError for `tensorboard` where the
    package of that name is missing. Local.
    """

    def __init__(self, monitor_config: Mapping[str, Any]) -> None:
        on = {name: section for name, section in monitor_config.items() if _is_on(section)}
        for name in ("wandb", "comet"):
            if name in on:
                raise NotBuiltError(f"{name} is not built, it needs a service; use csv_monitor or tensorboard")
        self.csv_folder = _folder(on["csv_monitor"]) if "csv_monitor" in on else None
        self.tensorboard = None
        if "tensorboard" in on and get_rank() == 0:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(_folder(on["tensorboard"])))
        self.enabled = self.csv_folder is not None or "tensorboard" in on

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Appends events. Local."""
        if get_rank() != 0:
            return
        for name, value, step in event_list:
            if self.csv_folder is not None:
                _append(self.csv_folder, name, value, step)
            if self.tensorboard is not None:
                self.tensorboard.add_scalar(name, value, step)
        if self.tensorboard is not None:
            self.tensorboard.flush()


def _is_on(section: Any) -> bool:
    return isinstance(section, Mapping) and bool(section.get("enabled"))


def _folder(section: Mapping[str, Any]) -> pathlib.Path:
    return pathlib.Path(section.get("output_path") or ".", section.get("job_name", "DeepSpeedJobName"))


def _append(folder: pathlib.Path, name: str, value: Any, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name.replace("/", "_").replace(" ", "_") + ".csv")
    header = "" if file.exists() else f"step,{name.rpartition('/')[2]}\n"
    with file.open("a") as rows:
        rows.write(f"{header}{step},{float(value)}\n")
