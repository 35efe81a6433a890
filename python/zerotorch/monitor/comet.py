"""Comet, a service, whose monitor is not built."""

from collections.abc import Iterable
from typing import Any

from ..errors import NotBuiltError
from .monitor import Event, Monitor


class CometMonitor(Monitor):
    """Does nothing where it is not enabled. Raises NotBuiltError where it is."""

    def __init__(self, comet_config: Any) -> None:
        super().__init__(comet_config)
        self.enabled = comet_config.enabled
        if self.enabled:
            raise NotBuiltError("comet is not built, it needs a service; use csv_monitor or tensorboard")

    def write_events(self, event_list: Iterable[Event]) -> None:
        """Nothing."""
