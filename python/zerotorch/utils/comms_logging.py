"""Sizes and rates of collectives, for programs that measure their own."""

import math

from .._lazy import attach

__all__ = ["calc_bw_log", "convert_size"]

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")


def convert_size(size_bytes: int) -> str:
    """ "1.5 KB" for 1536. Local."""
    if size_bytes == 0:
        return "0B"
    power = int(math.floor(math.log(size_bytes, 1024)))
    return f"{round(size_bytes / 1024**power, 2)} {_UNITS[power]}"


def calc_bw_log(comm_op: str, size: float, duration: float) -> tuple[float, float]:
    """Gbit/s of a collective that took `duration` ms: of the algorithm, and of the busiest link. `size` is this rank's
    bytes. Raises ValueError for an operation that it does not know. Local."""
    from ..comm import get_world_size

    ranks = get_world_size()
    others = (ranks - 1) / ranks
    rate = size / duration * 8 / 1e6
    if comm_op in ("all_to_all", "all_to_all_single"):
        return rate, rate * others
    if comm_op in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"):
        return rate * ranks, rate * ranks * others
    if comm_op in ("all_reduce", "all_reduce_coalesced", "inference_all_reduce"):
        return 2 * rate, 2 * rate * others
    if comm_op in _ONE_WAY:
        return rate, rate
    raise ValueError(f"{comm_op} is no collective whose rate is known")


_ONE_WAY = (
    *("send", "recv", "isend", "irecv", "batch_isend_irecv"),
    *("broadcast", "broadcast_object_list", "reduce", "gather", "scatter", "barrier"),
)

__getattr__, __dir__ = attach(__name__)
