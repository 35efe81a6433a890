"""DeepSpeed's command line, `deepspeed [options] script.py args...`: the ranks of this host, or of those in a hostfile."""

from __future__ import annotations

import argparse
import base64
import json
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from zerotorch.core.log import logger
from zerotorch.errors import ArgumentError

from .local_ranks import Place, run_ranks

# For programs that start ranks on several hosts themselves.
DEEPSPEED_ENVIRONMENT_NAME = ".deepspeed_env"
DLTS_HOSTFILE = "/job/hostfile"
EXPORT_ENVS = ["MLFLOW", "PYTHON", "MV2", "UCX"]


def main(args: Sequence[str] | None = None) -> int:
    """Starts the ranks that `args` (default: sys.argv) asks for, as many as NUMA nodes where it does not say.

    Each gets `--local_rank=R` before its own arguments unless told not to. Ranks on several hosts are started by mpirun,
    or with --no_ssh by the same command on each host. Returns the exit code: see `run_ranks`.
    """
    parser = _parser()
    options = parser.parse_args(args)
    _check_one_way(options)
    for name in ("bind_cores_to_rank", "bind_core_list"):
        if getattr(options, name):
            print(f"--{name} has no effect: set zerotorch.bind_cores_to_rank in the configuration", file=sys.stderr)
    try:
        hosts = _hosts(options)
        if len(hosts) > 1 or options.force_multi:
            return _run_one_of_hosts(options, hosts) if options.no_ssh else _run_on_hosts(options, hosts)
        ranks = next(iter(hosts.values())) if hosts else _number_of_ranks(options)
    except ValueError as error:
        parser.error(str(error))
    return run_ranks(
        ranks,
        lambda rank: _command(options, f"--local_rank={rank}"),
        master_addr=options.master_addr or "127.0.0.1",
        master_port=options.master_port,
    )


def _command(options: argparse.Namespace, local_rank: str) -> list[str]:
    start = [] if options.no_python else [sys.executable, "-u", "-m", "zerotorch.run"]
    module = ["-m"] if options.module else []
    return [
        *start,
        *module,
        options.user_script,
        *([] if options.no_local_rank else [local_rank]),
        *options.user_args,
    ]


def _hosts(options: argparse.Namespace) -> dict[str, int]:
    """The ranks by host, as hostfile, filters and numbers say; empty where there is no hostfile, or one of one host."""
    path = pathlib.Path(options.hostfile or DLTS_HOSTFILE)
    if options.hostfile is None and not path.is_file():
        if options.num_nodes > 1 or options.force_multi or options.node_rank > 0:
            raise ValueError(f"several hosts are wanted, and there is no hostfile: give one by --hostfile, or as {path}")
        return {}
    pool = read_hostfile(str(path))
    if len(pool) == 1 and not options.force_multi:
        if options.num_nodes > 1:
            raise ValueError(f"--num_nodes {options.num_nodes}: {path} lists one host")
        return {}
    slots = parse_inclusion_exclusion(pool, options.include, options.exclude)
    if options.num_nodes > len(slots):
        raise ValueError(f"--num_nodes {options.num_nodes}: {path} lists {len(slots)} hosts")
    if options.num_nodes > 0:
        slots = dict(list(slots.items())[: options.num_nodes])
    few = next((host for host, mine in slots.items() if len(mine) < options.num_gpus), None)
    if few is not None:
        raise ValueError(f"--num_gpus {options.num_gpus}: {few} has {len(slots[few])} slots")
    ranks = {host: options.num_gpus if options.num_gpus > 0 else len(mine) for host, mine in slots.items()}
    if not ranks:
        raise ValueError("--exclude leaves no slots")
    return ranks


def _run_on_hosts(options: argparse.Namespace, hosts: Mapping[str, int]) -> NoReturn:
    from .on_hosts import become_launcher

    if options.launcher not in ("openmpi", "pdsh"):
        raise ValueError(f"--launcher {options.launcher}: ranks on several hosts are started by openmpi")
    if options.launcher_args:
        raise ValueError("--launcher_args: set options of Open MPI by its variables, such as OMPI_MCA_btl_tcp_if_include")
    if options.ssh_port:
        os.environ["OMPI_MCA_plm_rsh_args"] = f"-p {options.ssh_port}"
    environment = _read_environment()
    for name, value in (("MASTER_ADDR", options.master_addr), ("MASTER_PORT", options.master_port)):
        if value:
            environment[name] = str(value)
    become_launcher(hosts, _command_on_hosts(options), environment=environment)


def _command_on_hosts(options: argparse.Namespace) -> list[str]:
    """One command for all ranks: each finds its local rank in LOCAL_RANK."""
    if options.no_local_rank:
        return _command(options, "")
    if options.no_python:
        return ["sh", "-c", 'exec "$0" "--local_rank=$LOCAL_RANK" "$@"', options.user_script, *options.user_args]
    module = ["-m"] if options.module else []
    start = [sys.executable, "-u", "-m", "zerotorch.run", "--pass-local-rank"]
    return [*start, *module, options.user_script, *options.user_args]


def _run_one_of_hosts(options: argparse.Namespace, hosts: Mapping[str, int]) -> int:
    """With --no_ssh this runs on each host, which says by --node_rank which it is."""
    names = list(hosts)
    if not 0 <= options.node_rank < len(names):
        raise ValueError(f"--no_ssh: want --node_rank, this host's place in the hostfile, 0 to {len(names) - 1}")
    before = sum(hosts[name] for name in names[: options.node_rank])
    place = Place(
        sum(hosts.values()), hosts[names[options.node_rank]], first_rank=before, host=options.node_rank, hosts=len(names)
    )
    return run_ranks(
        place,
        lambda rank: _command(options, f"--local_rank={rank}"),
        master_addr=options.master_addr or names[0],
        master_port=options.master_port,
    )


def _read_environment() -> dict[str, str]:
    """Of the first `.deepspeed_env` in this folder or at home: NAME=VALUE lines for all ranks."""
    for folder in (pathlib.Path.cwd(), pathlib.Path.home()):
        path = folder / DEEPSPEED_ENVIRONMENT_NAME
        if path.is_file():
            lines = [line.strip() for line in path.read_text().splitlines()]
            pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
            return {name.strip(): value.strip() for name, _, value in pairs}
    return {}


def _check_one_way(options: argparse.Namespace) -> None:
    """Raises ArgumentError, a ValueError as in DeepSpeed, where ranks are asked for in two ways."""
    if (options.include or options.exclude) and max(options.num_gpus, options.num_nodes) > 0:
        raise ArgumentError("--num_gpus and --num_nodes exclude --include and --exclude: give a number, or name slots")


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line. Local."""
    return _parser().parse_args(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepspeed", description="Starts the ranks of a job, on this host or several.")
    number = parser.add_argument
    number("--num_gpus", "--num_accelerators", type=int, default=-1, metavar="N", help="number of ranks of each host")
    number("--num_nodes", type=int, default=-1, metavar="N", help="number of hosts of the hostfile")
    number("--node_rank", type=int, default=-1, help="with --no_ssh: place of this host, from 0")
    number("--master_port", type=int, default=None, help="where ranks meet (default: a free port)")
    number("--master_addr", default=None, help="where ranks meet (default: the first host)")
    number("-H", "--hostfile", metavar="FILE", help=f"lines: host slots=N (default: {DLTS_HOSTFILE}, if it is there)")
    number("-i", "--include", default="", metavar="HOST[:SLOT,...][@...]", help="as many ranks as slots are named")
    number("-e", "--exclude", default="", metavar="HOST[:SLOT,...][@...]", help="so many ranks fewer")
    number("--launcher", default="openmpi", help="for several hosts: openmpi (pdsh is taken for it)")
    number("--launcher_args", default="", help=argparse.SUPPRESS)
    number("--ssh_port", type=int, default=None, help="of the other hosts")
    number("--bind_core_list", default=None, help=argparse.SUPPRESS)
    for name, text in (
        ("module", "the script is the name of a module"),
        ("no_python", "the script is a program of its own"),
        ("no_local_rank", "do not pass --local_rank"),
        ("force_multi", "start the ranks as on several hosts, though there is one"),
        ("no_ssh", "this command is run on every host, with its --node_rank"),
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
    if hostfile is None and not pathlib.Path(DLTS_HOSTFILE).is_file():
        from ..accelerator import get_accelerator  # with torch

        return get_accelerator().device_count()
    return next(iter(read_hostfile(hostfile or DLTS_HOSTFILE).values()))


def _slots_named(filter_: str) -> int:
    if "@" in filter_:
        raise ValueError("--include and --exclude name several hosts, and the hostfile lists none or one")
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


def read_hostfile(hostfile_path: str) -> dict[str, int]:
    """As `fetch_hostfile`; a file that is not there is a ValueError, too."""
    try:
        return _parse_hostfile(pathlib.Path(hostfile_path).read_text().splitlines())
    except OSError as error:
        raise ArgumentError(f"{hostfile_path}: {error.strerror}") from error


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
