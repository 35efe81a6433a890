"""Events in files with a row each."""

import pathlib
from collections.abc import Iterable
from typing import Any

from ..comm import get_rank
from .monitor import Event, Monitor


class csvMonitor(Monitor):  # noqa: N801  # DeepSpeed's name
    """`output_path`/`job_name`/`name`.csv on rank 0, where enabled."""

    def __init__(self, csv_config: Any) -> None:
        super().__init__(csv_config)
        self.enabled = csv_config.enabled
        self.output_path = csv_config.output_path
        self.job_name = csv_config.job_name
        self.log_dir = pathlib.Path(self.output_path or ".", self.job_name)

    def write_events(self, event_list: Iterable[Event]) -> None:
        if not self.enabled or get_rank() != 0:
            return
        self.log_dir.mkdir(parents=True, exist_ok=True)
        for name, value, step in event_list:
            file = self.log_dir / (name.replace("/", "_").replace(" ", "_") + ".csv")
            header = "" if file.exists() else f"step,{name.rpartition('/')[2]}\n"
            with file.open("a") as rows:
                rows.write(f"{header}{step},{float(value)}\n")
