"""`deepspeed.comm`: torch.distributed under DeepSpeed's names. See `zerotorch.comm.comm`."""

from .._lazy import attach
from .comm import *  # noqa: F403

__getattr__, __dir__ = attach(__name__, names={"TorchBackend": "zerotorch.comm.torch"})
