"""DeepSpeed's command line, `deepspeed [options] script.py args...`, for one host; hosts and slots as launchers of several
hosts write them."""

from __future__ import annotations

import argparse
import base64
import json
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence

from zerotorch.core.log import logger
from zerotorch.errors import ArgumentError

from .local_ranks import run_ranks

# For programs that start ranks on several hosts themselves.
DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
DLTS_HOSTFILE = "/job/hostfile"
EXPORT_ENVS = ["MLFLOW", "PYTHON", "MV2", "UCX"]


def main(args: Sequence[str] | None = None) -> int:
    """Starts the ranks that `args` (default: sys.argv) asks for, as many as NUMA nodes where it does not say.

    Each gets `--local_rank=R` before its own arguments unless told not to. Returns the exit code: see `run_ranks`.
    """
    parser = _parser()
    options = parser.parse_args(args)
    _check_one_way(options)
    if options.num_nodes > 1 or options.force_multi or options.node_rank > 0:
        parser.error("only ranks of one host are started here; for several use torchrun or mpirun with zerotorch.run")
    try:
        ranks = _number_of_ranks(options)
    except ValueError as error:
        parser.error(str(error))
    for name in ("bind_cores_to_rank", "bind_core_list"):
        if getattr(options, name):
            print(f"--{name} has no effect: set zerotorch.bind_cores_to_rank in the configuration", file=sys.stderr)

    def command(rank: int) -> list[str]:
        start = [] if options.no_python else [sys.executable, "-u", "-m", "zerotorch.run"]
        module = ["-m"] if options.module else []
        local_rank = [] if options.no_local_rank else [f"--local_rank={rank}"]
        return [*start, *module, options.user_script, *local_rank, *options.user_args]

    return run_ranks(ranks, command, master_addr=options.master_addr, master_port=options.master_port)


def _check_one_way(options: argparse.Namespace) -> None:
    """Raises ArgumentError, a ValueError as in DeepSpeed, where ranks are asked for in two ways."""
    if (options.include or options.exclude) and max(options.num_gpus, options.num_nodes) > 0:
        raise ArgumentError("--num_gpus and --num_nodes exclude --include and --exclude: give a number, or name slots")


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line. Local."""
    return _parser().parse_args(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepspeed", description="Starts the ranks of a job on this host.")
    number = parser.add_argument
    number("--num_gpus", "--num_accelerators", type=int, default=-1, metavar="N", help="number of ranks")
    number("--num_nodes", type=int, default=-1, metavar="N", help="number of hosts: 1")
    number("--node_rank", type=int, default=-1, help="place of this host: 0")
    number("--master_port", type=int, default=None, help="where ranks meet (default: a free port)")
    number("--master_addr", default="127.0.0.1", help="where ranks meet (default: %(default)s)")
    number("-H", "--hostfile", metavar="FILE", help="a line: host slots=N")
    number("-i", "--include", default="", metavar="HOST[:SLOT,...]", help="as many ranks as slots are named")
    number("-e", "--exclude", default="", metavar="HOST:SLOT,...", help="so many ranks fewer")
    number("--bind_core_list", default=None, help=argparse.SUPPRESS)
    for name, text in (
        ("module", "the script is the name of a module"),
        ("no_python", "the script is a program of its own"),
        ("no_local_rank", "do not pass --local_rank"),
        ("force_multi", argparse.SUPPRESS),
        ("bind_cores_to_rank", argparse.SUPPRESS),
    ):
        number(f"--{name}", action="store_true", help=text)
    number("user_script", help="script, module or program")
    number("user_args", nargs=argparse.REMAINDER, help="of the script")
    return parser


def _number_of_ranks(options: argparse.Namespace) -> int:
    if options.num_gpus > 0:
        return int(options.num_gpus)
    slots = _slots_of_host(options.hostfile)
    if options.include and options.exclude:
        raise ValueError("--include and --exclude exclude each other")
    included, excluded = _slots_named(options.include), _slots_named(options.exclude)
    left = (included or slots) - excluded
    if left < 1:
        raise ValueError(f"--exclude leaves none of {slots} slots")
    return left


def _slots_of_host(hostfile: str | None) -> int:
    if hostfile is None:
        from ..accelerator import get_accelerator  # with torch

        return get_accelerator().device_count()
    pool = _parse_hostfile(pathlib.Path(hostfile).read_text().splitlines())
    if len(pool) != 1:
        raise ValueError(f"{hostfile} must have one line, `host slots=N`: this launcher starts the ranks of one host")
    return next(iter(pool.values()))


def _slots_named(filter_: str) -> int:
    if "@" in filter_:
        raise ValueError("--include and --exclude name one host: this launcher starts the ranks of one host")
    slots = filter_.partition(":")[2]
    return len(slots.split(",")) if slots else 0


# ---- hostfiles and filters. Everything is local. ----

Slots = dict[str, list[int]]


def fetch_hostfile(hostfile_path: str) -> dict[str, int] | None:
    """The number of slots by host, from lines `host slots=N`; None where there is no file.

    Raises ValueError for other lines, a host that comes twice, and a file without hosts.
    """
    path = pathlib.Path(hostfile_path)
    if not path.is_file():
        logger.warning(f"there is no hostfile {hostfile_path}: this host's slots are used")
        return None
    return _parse_hostfile(path.read_text().splitlines())


def _parse_hostfile(hostfile_lines: Sequence[str]) -> dict[str, int]:
    pool: dict[str, int] = {}
    for line in map(str.strip, hostfile_lines):
        if not line or line.startswith("#"):
            continue
        found = re.match(r"(\S+)\s+slots=(\d+)", line)
        if found is None:
            raise ValueError(f"Hostfile contains a bad entry: {line}, write `host slots=N`")
        if found[1] in pool:
            raise ValueError(f"Hostfile contains multiple entries for {found[1]}, keep one")
        pool[found[1]] = int(found[2])
    if not pool:
        raise ValueError("Hostfile is empty or not formatted correctly, write `host slots=N` lines")
    return pool


def parse_inclusion_exclusion(resource_pool: Mapping[str, int], inclusion: str, exclusion: str) -> Slots:
    """`parse_resource_filter` of all slots of these hosts."""
    everything = {host: list(range(slots)) for host, slots in resource_pool.items()}
    return parse_resource_filter(everything, inclusion, exclusion)


def parse_resource_filter(
    host_info: Mapping[str, Sequence[int]], include_str: str = "", exclude_str: str = ""
) -> Slots:
    """The slots that are left by "host1@host2:0,2", in the order of `host_info`: those named, or all but those.

    A host without slots is all of its slots. Raises ValueError for both filters together, and for hosts and slots that
    are not there.
    """
    if include_str and exclude_str:
        raise ValueError("include_str and exclude_str are mutually exclusive.")
    hosts = {host: list(slots) for host, slots in host_info.items()}
    if not include_str and not exclude_str:
        return hosts
    named = _named(include_str or exclude_str, hosts)
    if include_str:
        left = {host: named[host] for host in hosts if host in named}
    else:
        left = {host: [one for one in slots if one not in named.get(host, [])] for host, slots in hosts.items()}
    return {host: slots for host, slots in left.items() if slots}


def _named(text: str, hosts: Slots) -> Slots:
    named: Slots = {}
    for part in text.split("@"):
        host, colon, slots = part.partition(":")
        if host not in hosts:
            raise ValueError(f"Hostname '{host}' not found in hostfile")
        numbers = [int(one) for one in slots.split(",")] if colon else hosts[host]
        for number in numbers:
            if number not in hosts[host]:
                raise ValueError(f"No slot '{number}' specified on host '{host}'")
        named[host] = sorted({*named.get(host, []), *numbers})
    return named


def encode_world_info(world_info: Mapping[str, Sequence[int]]) -> str:
    """Slots by host as base64 of JSON, for a command line."""
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


if __name__ == "__main__":
    sys.exit(main())
