"""`deepspeed.comm`: torch.distributed under DeepSpeed's names. See `zerotorch.comm.comm`."""

from .comm import *  # noqa: F403
