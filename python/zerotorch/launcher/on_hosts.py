"""Ranks on several hosts, which mpirun starts. Imports no torch."""

import json
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from zerotorch.errors import UsageError

#: Beside the package's compiled part, which is in a folder of its own where the rest of it are links.
_PROGRAM = "bin/zerotorch-launch"


def launch_program() -> str:
    """The path of the program that starts them. Raises UsageError where this package was built without it."""
    import zerotorch

    for folder in zerotorch.__path__:
        program = pathlib.Path(folder) / _PROGRAM
        if program.is_file():
            return str(program)
    raise UsageError(f"this package has no {_PROGRAM}: it was built without it; build it with `make python` or `make wheel`")


def become_launcher(
    hosts: Mapping[str, int],
    command: Sequence[str],
    *,
    ranks: int = 0,
    hosts_wanted: tuple[int, int] = (0, 0),
    environment: Mapping[str, str] | None = None,
    max_restarts: int = 0,
    grace_s: float | None = None,
    log_dir: str = "",
) -> NoReturn:
    """Replaces this process by the launcher of `command` on every slot of `hosts`, or on the first `ranks` of them.

    `hosts_wanted`: the fewest and the most hosts; those that do not answer are left out. (0, 0): all have to answer.
    Ranks get the variables that torchrun gives; zerotorch answers for deepspeed in them.
    """
    options = {
        "hosts": list(hosts.items()),
        "command": list(command),
        "ranks": ranks,
        "min_hosts": hosts_wanted[0],
        "max_hosts": hosts_wanted[1],
        "environment": {"ZEROTORCH_AS_DEEPSPEED": "1", **(environment or {})},
        "prefix_output": False,
        "log_dir": log_dir,
        "max_restarts": max_restarts,
        "name": "zerotorch",
    }
    if grace_s is not None:
        options["grace_ms"] = round(grace_s * 1000)
    sys.stdout.flush()
    sys.stderr.flush()
    program = launch_program()
    os.execv(program, [program, json.dumps(options)])


def numbers_of_hosts(text: str) -> tuple[int, int]:
    """The fewest and the most of "2" or "1:4". Raises ValueError."""
    fewest, colon, most = text.partition(":")
    found = int(fewest), int(most if colon else fewest)
    if not 1 <= found[0] <= found[1]:
        raise ValueError(f"got {text!r}, want a number of hosts or the fewest and the most, such as 2:4")
    return found
