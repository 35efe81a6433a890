"""Which of the job's processes this one is, as torch.distributed and launchers say. Imports no torch."""

from __future__ import annotations

import os
import sys
from typing import Any

#: What launchers call a rank's place, by the names that torch.distributed reads.
_LAUNCHERS = {
    "RANK": ("RANK", "ZERO_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": (
        "WORLD_SIZE",
        "ZERO_WORLD_SIZE",
        "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_NTASKS",
    ),
    "LOCAL_RANK": ("LOCAL_RANK", "ZERO_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("LOCAL_WORLD_SIZE", "ZERO_LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def _distributed() -> Any:
    """torch.distributed, where a program has a process group; else None."""
    distributed = sys.modules.get("torch.distributed")
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if has_group else None


def is_initialized() -> bool:
    return _distributed() is not None


def rank() -> int:
    """This process's among all; before there is a process group, what the launcher says, else 0. Local."""
    distributed = _distributed()
    return int(distributed.get_rank() if distributed else from_launcher("RANK") or "0")


def world_size() -> int:
    """The number of ranks; before there is a process group, what the launcher says, else 1. Local."""
    distributed = _distributed()
    return int(distributed.get_world_size() if distributed else from_launcher("WORLD_SIZE") or "1")


def from_launcher(name: str) -> str | None:
    for variable in _LAUNCHERS[name]:
        if variable.startswith("SLURM") and "SLURM_STEP_ID" not in os.environ:
            continue
        if os.environ.get(variable):
            return os.environ[variable]
    return None


def is_on_several_hosts() -> bool:
    """Whether the launcher says so of this job. Local."""
    if os.environ.get("WORLD_SIZE") and os.environ.get("LOCAL_WORLD_SIZE"):
        return os.environ["WORLD_SIZE"] != os.environ["LOCAL_WORLD_SIZE"]
    size, beside = os.environ.get("OMPI_COMM_WORLD_SIZE"), os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if size is None:
        size, beside = os.environ.get("PMI_SIZE"), os.environ.get("MPI_LOCALNRANKS")
    if size is not None and beside is not None:
        return size != beside
    return "SLURM_STEP_ID" in os.environ and int(os.environ.get("SLURM_STEP_NUM_NODES", "1")) > 1
