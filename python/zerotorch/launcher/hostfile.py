"""Hosts and slots as launchers of several hosts write them: `fetch_hostfile` and filters. Everything is local."""

from __future__ import annotations

import base64
import json
import pathlib
import re
from collections.abc import Mapping, Sequence

from ..utils.logging import logger

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
