"""`deepspeed.runtime.config`."""

from .._lazy import attach
from ..errors import DeepSpeedConfigError

__all__ = ["DeepSpeedConfigError"]

__getattr__, __dir__ = attach(__name__, names={"DeepSpeedConfig": "zerotorch.config"})
