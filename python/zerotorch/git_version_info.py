"""Which DeepSpeed this stands in for, and what it was built with."""

import torch
from _zerotorch_as_deepspeed import DEEPSPEED_VERSION

from .ops.op_builder import __compatible_ops__

version = DEEPSPEED_VERSION
git_hash = git_branch = "[none]"
__git_hash__, __git_branch__ = git_hash, git_branch
__version_major__, __version_minor__, __version_patch__ = (int(part) for part in version.split("+")[0].split("."))

compatible_ops = __compatible_ops__
installed_ops = dict(__compatible_ops__)

_DIGITS = 2


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:_DIGITS])


torch_info = {
    "version": _minor(torch.__version__),
    "cuda_version": _minor(torch.version.cuda or "0.0"),
    "nccl_version": "0.0",
    "hip_version": _minor(getattr(torch.version, "hip", None) or "0.0"),
    "bf16_support": True,
}
