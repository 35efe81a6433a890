"""`deepspeed.runtime.engine`."""

from .. import comm as dist
from .._lazy import attach
from ..utils import groups

__all__ = ["dist", "groups"]

__getattr__, __dir__ = attach(__name__, names={"DeepSpeedEngine": "zerotorch.engine"})
