"""ZeRO for PyTorch: DeepSpeed's surface over zerotorch's engine.

Programs written for DeepSpeed run with ``import zerotorch as deepspeed``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zerotorch._build import load as _load

_load()

from zerotorch._version import __version__  # noqa: E402

if TYPE_CHECKING:
    from zerotorch import (  # noqa: F401
        accelerator,
        checkpointing,
        comm,
        ops,
        pipe,
        runtime,
        utils,
        zero,
    )
    from zerotorch.accelerator import get_accelerator  # noqa: F401
    from zerotorch.arguments import add_config_arguments  # noqa: F401
    from zerotorch.config import DeepSpeedConfig  # noqa: F401
    from zerotorch.distributed import init_distributed  # noqa: F401
    from zerotorch.engine import DeepSpeedEngine, Engine  # noqa: F401
    from zerotorch.errors import (  # noqa: F401
        CheckpointError,
        CommError,
        ConfigError,
        DeepSpeedConfigError,
        ModelError,
        UsageError,
        ZeroError,
    )
    from zerotorch.inference import InferenceEngine, init_inference, tp_model_init  # noqa: F401
    from zerotorch._initialize import initialize  # noqa: F401
    from zerotorch.pipe import PipelineModule  # noqa: F401
    from zerotorch._plan import Plan, plan  # noqa: F401
    from zerotorch.runtime.base_optimizer import DeepSpeedOptimizer, ZeROOptimizer  # noqa: F401

# Where the names of the package come from, so that importing it stays cheap.
_ATTRIBUTES = {
    "initialize": "zerotorch._initialize",
    "init_distributed": "zerotorch.distributed",
    "DeepSpeedEngine": "zerotorch.engine",
    "Engine": "zerotorch.engine",
    "DeepSpeedConfig": "zerotorch.config",
    "DeepSpeedConfigError": "zerotorch.errors",
    "ZeroError": "zerotorch.errors",
    "UsageError": "zerotorch.errors",
    "ModelError": "zerotorch.errors",
    "ConfigError": "zerotorch.errors",
    "CommError": "zerotorch.errors",
    "CheckpointError": "zerotorch.errors",
    "DeepSpeedOptimizer": "zerotorch.runtime.base_optimizer",
    "ZeROOptimizer": "zerotorch.runtime.base_optimizer",
    "add_config_arguments": "zerotorch.arguments",
    "get_accelerator": "zerotorch.accelerator",
    "log_dist": "zerotorch.utils.logging",
    "logger": "zerotorch.utils.logging",
    "OnDevice": "zerotorch.zero.on_device",
    "plan": "zerotorch._plan",
    "Plan": "zerotorch._plan",
    "init_inference": "zerotorch.inference",
    "tp_model_init": "zerotorch.inference",
    "InferenceEngine": "zerotorch.inference",
    "PipelineModule": "zerotorch.pipe",
}
_MODULES = (
    "accelerator",
    "checkpoint",
    "checkpointing",
    "comm",
    "launcher",
    "module_inject",
    "moe",
    "monitor",
    "ops",
    "pipe",
    "profiling",
    "runtime",
    "utils",
    "zero",
)

__all__ = ["__version__", *sorted(_ATTRIBUTES)]


def __getattr__(name: str) -> Any:
    if name in _ATTRIBUTES:
        value = getattr(importlib.import_module(_ATTRIBUTES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"zerotorch.{name}")
    raise AttributeError(f"module 'zerotorch' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ATTRIBUTES, *_MODULES})
