"""Wandb, a service, whose monitor is not built."""

from collections.abc import Iterable
from typing import Any

from ..errors import NotBuiltError
from .monitor import Event, Monitor


class WandbMonitor(Monitor):
    """Does nothing where it is not enabled. Raises NotBuiltError where it is."""

    def __init__(self, wandb_config: Any) -> None:
        super().__init__(wandb_config)
        self.enabled = wandb_config.enabled
        self.group, self.team, self.project = wandb_config.group, wandb_config.team, wandb_config.project
        if self.enabled:
            raise NotBuiltError("wandb is not built, it needs a service; use csv_monitor or tensorboard")

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Nothing."""
