"""`python -m zerotorch.run [-n N] script.py args...`: runs a program in which `import deepspeed` finds zerotorch.

Without -n it runs in this process, so that torchrun or mpirun may start it; with -n N there are N ranks of this host,
with the environment that torchrun gives. On several hosts, either the same command on each of them,
`--nnodes H --node-rank R --master-addr A -n N`, or one for all, `--hostfile FILE`, which starts the ranks by mpirun.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from typing import NoReturn

from .launcher.local_ranks import GRACE_S, MASTER_PORT, Place, run_ranks


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line `arguments` (default: sys.argv). Returns the exit code: see `run_ranks`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.m and not os.path.exists(options.program):
        parser.error(f"there is no program '{options.program}'")
    program = ["-m", options.program] if options.m else [options.program]
    local_rank = ["--pass-local-rank"] if options.pass_local_rank else []
    command = ["-m", "zerotorch.run", *local_rank, *program, *options.arguments]
    try:
        if options.hostfile:
            _run_on_hosts(options, [sys.executable, "-u", *command])
        if options.nnodes or options.node_rank:
            return _run_one_of_hosts(options, [sys.executable, *command])
    except ValueError as error:
        parser.error(str(error))
    for name in ("max_restarts", "log_dir"):
        if getattr(options, name):
            parser.error(f"--{name.replace('_', '-')} belongs to --hostfile; on one host `zero launch` has it")
    if options.n is None:
        arguments_of_program = options.arguments
        if options.pass_local_rank:
            arguments_of_program = [f"--local_rank={os.environ.get('LOCAL_RANK', '0')}", *arguments_of_program]
        run_here(options.program, arguments_of_program, as_module=options.m)
        return 0
    grace_s = GRACE_S if options.grace is None else options.grace
    return run_ranks(
        options.n, lambda rank: [sys.executable, *command], master_port=options.master_port, grace_s=grace_s
    )


def _run_on_hosts(options: argparse.Namespace, command: Sequence[str]) -> NoReturn:
    from .launcher.on_hosts import become_launcher, numbers_of_hosts
    from .launcher.runner import read_hostfile

    if options.node_rank is not None or options.master_addr:
        raise ValueError("--node-rank and --master-addr are of a command on each host; --hostfile starts them all")
    environment = {"MASTER_PORT": str(options.master_port)} if options.master_port else {}
    become_launcher(
        read_hostfile(options.hostfile),
        command,
        ranks=options.n or 0,
        hosts_wanted=numbers_of_hosts(options.nnodes) if options.nnodes else (0, 0),
        environment=environment,
        max_restarts=options.max_restarts,
        grace_s=options.grace,
        log_dir=options.log_dir,
    )


def _run_one_of_hosts(options: argparse.Namespace, command: Sequence[str]) -> int:
    if not (options.nnodes or "").isdigit() or int(options.nnodes) < 1:
        raise ValueError(f"--nnodes: got {options.nnodes or 'nothing'}, want the number of hosts")
    hosts, ranks = int(options.nnodes), options.n or 1
    host = options.node_rank if options.node_rank is not None else (0 if hosts == 1 else None)
    if host is None or not 0 <= host < hosts:
        raise ValueError(f"--node-rank: got {host}, want this host's number, 0 to {hosts - 1}, a different one on each")
    if hosts > 1 and not options.master_addr:
        raise ValueError("--master-addr: want the address of the host with --node-rank 0, the same on all hosts")
    place = Place(hosts * ranks, ranks, first_rank=host * ranks, host=host, hosts=hosts)
    return run_ranks(
        place,
        lambda rank: command,
        master_addr=options.master_addr or "127.0.0.1",
        master_port=options.master_port,
        grace_s=GRACE_S if options.grace is None else options.grace,
    )


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
    option = parser.add_argument
    option("--nnodes", metavar="H", help="number of hosts, on each of which this is run; with --hostfile also MIN:MAX")
    option("--node_rank", "--node-rank", type=int, metavar="R", help="which of them this one is, from 0")
    option("--master_addr", "--master-addr", metavar="A", help="address of the host with --node-rank 0")
    option(
        "--master_port",
        "--master-port",
        type=int,
        metavar="PORT",
        help=f"where ranks meet (default: a free port; with --nnodes {MASTER_PORT})",
    )
    option("--hostfile", metavar="FILE", help="start the ranks of all hosts by mpirun; lines such as 'worker-1 slots=4'")
    option(
        "--max_restarts",
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="with --hostfile: start all ranks again after a failure, so often",
    )
    option("--log_dir", "--log-dir", default="", metavar="DIR", help="with --hostfile: for rank<N>.log and launch.jsonl")
    option("--pass-local-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help=f"seconds the other ranks may go on after the first failure (default {GRACE_S:g}; with --hostfile 5)",
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
