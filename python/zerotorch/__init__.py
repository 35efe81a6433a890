"""ZeRO for PyTorch: DeepSpeed's surface over zerotorch's engine.

Programs written for DeepSpeed run with ``import zerotorch as deepspeed``.
"""

from typing import TYPE_CHECKING, Any

from zerotorch._build import check_torch
from zerotorch._modules import attach
from zerotorch._version import __version__

if TYPE_CHECKING:
    from zerotorch import _C as _C
    from zerotorch import accelerator as accelerator
    from zerotorch import comm as comm
    from zerotorch import ops as ops
    from zerotorch import runtime as runtime
    from zerotorch import utils as utils
    from zerotorch import zero as zero
    from zerotorch.accelerator import get_accelerator as get_accelerator
    from zerotorch.core.distributed import init_distributed as init_distributed
    from zerotorch.core.engine import Engine as Engine
    from zerotorch.core.engine import backward as backward
    from zerotorch.core.parameters.deferred_init import deferred_init as deferred_init
    from zerotorch.core.plan import plan as plan
    from zerotorch.errors import CheckpointError as CheckpointError
    from zerotorch.errors import CommError as CommError
    from zerotorch.errors import ConfigError as ConfigError
    from zerotorch.errors import DeepSpeedConfigError as DeepSpeedConfigError
    from zerotorch.errors import ModelError as ModelError
    from zerotorch.errors import NotBuiltError as NotBuiltError
    from zerotorch.errors import UsageError as UsageError
    from zerotorch.errors import ZeroError as ZeroError
    from zerotorch.runtime.activation_checkpointing import checkpointing as checkpointing
    from zerotorch.runtime.base_optimizer import DeepSpeedOptimizer as DeepSpeedOptimizer
    from zerotorch.runtime.base_optimizer import ZeROOptimizer as ZeROOptimizer
    from zerotorch.runtime.config import DeepSpeedConfig as DeepSpeedConfig
    from zerotorch.runtime.config import add_config_arguments as add_config_arguments
    from zerotorch.runtime.engine import DeepSpeedEngine as DeepSpeedEngine
    from zerotorch.runtime.engine import initialize as initialize

__all__ = ["__version__"]

check_torch()

_attribute, __dir__ = attach(__name__)


def __getattr__(name: str) -> Any:
    if name == "_C":
        from zerotorch._build import load

        return load()
    return _attribute(name)
