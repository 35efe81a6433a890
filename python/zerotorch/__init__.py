"""ZeRO for PyTorch: DeepSpeed's surface over zerotorch's engine.

Programs written for DeepSpeed run with ``import zerotorch as deepspeed``.
"""

from typing import TYPE_CHECKING, Any

from zerotorch._build import check_torch
from zerotorch._lazy import attach
from zerotorch._not_built_modules import install as _install
from zerotorch._surface import NAMES
from zerotorch._version import __version__

if TYPE_CHECKING:
    from zerotorch import _C as _C
    from zerotorch import accelerator as accelerator
    from zerotorch import checkpointing as checkpointing
    from zerotorch import comm as comm
    from zerotorch import ops as ops
    from zerotorch import runtime as runtime
    from zerotorch import utils as utils
    from zerotorch import zero as zero
    from zerotorch._deferred_init import deferred_init as deferred_init
    from zerotorch._initialize import initialize as initialize
    from zerotorch.accelerator import get_accelerator as get_accelerator
    from zerotorch.arguments import add_config_arguments as add_config_arguments
    from zerotorch.config import DeepSpeedConfig as DeepSpeedConfig
    from zerotorch.distributed import init_distributed as init_distributed
    from zerotorch.engine import DeepSpeedEngine as DeepSpeedEngine
    from zerotorch.joint_loss import backward as backward
    from zerotorch.errors import DeepSpeedConfigError as DeepSpeedConfigError
    from zerotorch.runtime.base_optimizer import DeepSpeedOptimizer as DeepSpeedOptimizer
    from zerotorch.runtime.base_optimizer import ZeROOptimizer as ZeROOptimizer

__all__ = ["__version__"]

check_torch()
_install()

_attribute, __dir__ = attach(__name__, NAMES)


def __getattr__(name: str) -> Any:
    if name == "_C":
        from zerotorch._build import load

        return load()
    return _attribute(name)
