"""`ds_report`: what this environment has; and, as `git_version_info`, which DeepSpeed this stands in for."""

import pathlib
import platform
import sys

import torch
from _zerotorch_as_deepspeed import DEEPSPEED_VERSION

from . import __version__
from .accelerator import get_accelerator
from .ops.op_builder import ALL_OPS, __compatible_ops__

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


def op_report(verbose: bool = True) -> None:
    """Prints which operations are built in. Local."""
    print("operations (nothing is compiled at run time):")
    for name, builder in sorted(ALL_OPS.items()):
        print(f"  {name:.<40} {'[YES]' if builder.is_compatible() else '[NO]'}")


def debug_report() -> None:
    """Prints versions, and memory of this host. Local."""
    accelerator, gb = get_accelerator(), 2**30
    for what, value in (
        ("python", f"{platform.python_version()}, {sys.executable}"),
        ("torch", f"{torch.__version__}, {torch.__path__[0]}"),
        ("torch CUDA", torch.version.cuda or "none"),
        ("zerotorch", f"{__version__}, {pathlib.Path(__file__).parent}"),
        ("stands in for deepspeed", version),
        ("accelerator", f"{accelerator.device_name()}, {accelerator.device_count()} ranks by default"),
        ("memory", f"{accelerator.total_memory() / gb:.1f} GB, {accelerator.available_memory() / gb:.1f} GB free"),
    ):
        print(f"  {what:.<40} {value}")


def main(hide_operator_status: bool = False, hide_errors_and_warnings: bool = False) -> None:
    """Prints both reports. Local."""
    if not hide_operator_status:
        op_report(verbose=not hide_errors_and_warnings)
    debug_report()


def cli_main() -> None:
    """Of the command `ds_report`."""
    main("--hide_operator_status" in sys.argv, "--hide_errors_and_warnings" in sys.argv)


if __name__ == "__main__":
    cli_main()
