"""`python -m deepspeed.checkpoint.ds_to_universal`: the step between two numbers of ranks, of which none is needed.

Checkpoints of zerotorch load on any number of ranks, and so do DeepSpeed's own that it reads. For scripts that convert
and then load the result, the output is the same checkpoint under the other name.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
from collections.abc import Sequence

from zerotorch.errors import CheckpointError

from .._modules import attach


def parse_arguments(args: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command. Those that are about the work of converting change nothing."""
    parser = argparse.ArgumentParser(prog="ds_to_universal", description="Gives a checkpoint another name.")
    parser.add_argument("--input_folder", required=True, metavar="DIR", help="a checkpoint, as out/global_step100")
    parser.add_argument("--output_folder", required=True, metavar="DIR", help="where it should be, too")
    for name in ("num_extract_workers", "num_merge_workers"):
        parser.add_argument(f"--{name}", type=int, default=1, help=argparse.SUPPRESS)
    for name in ("keep_temp_folder", "no_strict", "inject_missing_state"):
        parser.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(args)


def main(args: argparse.Namespace) -> None:
    """Makes the output folder, with hard links to the input's files where the file system has these, else copies.

    `latest_universal` beside it names it. Raises CheckpointError where the input is no folder, or the output exists.
    """
    source, target = pathlib.Path(args.input_folder), pathlib.Path(args.output_folder)
    if not source.is_dir():
        raise CheckpointError(f"{source} is no folder: --input_folder is that of one checkpoint, as out/global_step100")
    if target.exists():
        raise CheckpointError(f"{target} exists: take another --output_folder, or remove it")
    writing = target.with_name(f".{target.name}.{os.getpid()}")  # complete under its name, or not there
    try:
        shutil.copytree(source, writing, copy_function=_link)
        writing.rename(target)
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    (target.parent / "latest_universal").write_text(target.name)
    print(f"{target} is {source}: checkpoints load on any number of ranks as they are")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


if __name__ == "__main__":
    main(parse_arguments())
else:
    __getattr__, __dir__ = attach(__name__)
