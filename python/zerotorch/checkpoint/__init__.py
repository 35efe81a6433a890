"""`deepspeed.checkpoint`. Names in files of DeepSpeed's are here, too."""

from .._lazy import attach
from .constants import *  # noqa: F403

__getattr__, __dir__ = attach(__name__, names={"SubparamShape": "zerotorch.checkpoint.universal_checkpoint"})
