"""Events for TensorBoard."""

import pathlib
from collections.abc import Iterable
from typing import Any

from ..comm import get_rank
from .monitor import Event, Monitor


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
        if self.enabled and self.summary_writer is None and get_rank() == 0:
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
