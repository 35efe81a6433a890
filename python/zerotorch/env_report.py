"""`ds_report`: what this environment has."""

import pathlib
import platform
import sys

import torch

from . import __version__
from .accelerator import get_accelerator
from .git_version_info import version
from .ops.op_builder import ALL_OPS


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
