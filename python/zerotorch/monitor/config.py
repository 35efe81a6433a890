"""The sections of monitors as objects."""

from __future__ import annotations

from typing import Any

from ..runtime.config_utils import DeepSpeedConfigModel


class TensorBoardConfig(DeepSpeedConfigModel):
    """`tensorboard`."""

    enabled: bool = False
    output_path: str = ""
    job_name: str = "DeepSpeedJobName"


class CSVConfig(TensorBoardConfig):
    """`csv_monitor`."""


class WandbConfig(DeepSpeedConfigModel):
    """`wandb`."""

    enabled: bool = False
    group: str | None = None
    team: str | None = None
    project: str = "deepspeed"


class CometConfig(DeepSpeedConfigModel):
    """`comet`."""

    enabled: bool = False
    samples_log_interval: int = 100
    project: str | None = None
    workspace: str | None = None
    api_key: str | None = None
    experiment_name: str | None = None
    experiment_key: str | None = None
    online: bool | None = None
    mode: str | None = None


class DeepSpeedMonitorConfig(DeepSpeedConfigModel):
    """All of them; `enabled` where one is."""

    tensorboard: TensorBoardConfig | None = None
    comet: CometConfig | None = None
    wandb: WandbConfig | None = None
    csv_monitor: CSVConfig | None = None

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(strict, **data)
        self.tensorboard = self.tensorboard or TensorBoardConfig()
        self.comet = self.comet or CometConfig()
        self.wandb = self.wandb or WandbConfig()
        self.csv_monitor = self.csv_monitor or CSVConfig()
        sections = (self.tensorboard, self.comet, self.wandb, self.csv_monitor)
        self.enabled = any(section.enabled for section in sections)


def get_monitor_config(param_dict: dict[str, Any]) -> DeepSpeedMonitorConfig:
    """The sections of a whole configuration."""
    names = ("tensorboard", "comet", "wandb", "csv_monitor")
    return DeepSpeedMonitorConfig(**{name: param_dict[name] for name in names if name in param_dict})
