"""`deepspeed.runtime.engine`."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__, names={"DeepSpeedEngine": "zerotorch.engine"})
