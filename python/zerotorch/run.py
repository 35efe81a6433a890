"""`python -m zerotorch.run [-n N] script.py args...`: runs a program in which `import deepspeed` finds zerotorch.

Without -n it runs in this process, so that torchrun or mpirun may start it; with -n N there are N ranks of this host,
with the environment that torchrun gives.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from .launcher.local_ranks import GRACE_S, run_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: sys.argv). Returns the exit code: see `run_ranks`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.m and not os.path.exists(options.program):
        parser.error(f"there is no program '{options.program}'")
    if options.n is None:
        run_here(options.program, options.arguments, as_module=options.m)
        return 0
    program = ["-m", options.program] if options.m else [options.program]
    command = [sys.executable, "-m", "zerotorch.run", *program, *options.arguments]
    return run_ranks(options.n, lambda rank: command, master_port=options.master_port, grace_s=options.grace)


def run_here(program: str, arguments: Sequence[str], *, as_module: bool = False) -> None:
    """Runs a script, or a module by its name, as `python` would, with zerotorch under the name of deepspeed. Local."""
    from . import as_deepspeed  # noqa: F401

    os.environ["ZEROTORCH_AS_DEEPSPEED"] = "1"  # for the processes that the program starts
    sys.argv = [program, *arguments]
    if as_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.abspath(program))
        runpy.run_path(program, run_name="__main__")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m zerotorch.run", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "-n",
        "--num_gpus",
        "--num_accelerators",
        "--nproc_per_node",
        "--nproc-per-node",
        dest="n",
        type=_count,
        metavar="N",
        help="number of ranks, under any of these names; not given: run in this process",
    )
    parser.add_argument("-m", action="store_true", help="the program is the name of a module")
    parser.add_argument("--master_port", type=int, metavar="PORT", help="where ranks meet (default: a free port)")
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE_S,
        metavar="S",
        help="seconds the other ranks may go on after the first failure (default %(default)g)",
    )
    parser.add_argument("program", help="script, or module with -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
