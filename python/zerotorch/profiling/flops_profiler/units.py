"""Numbers as people read them. Everything is local."""

DEFAULT_PRECISION = 2

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))
_SMALL = ((1e-3, "m"), (1e-6, "u"))


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """ "1.5 K"; `units` is one of T, G, M, K, m and u, and anything else means none."""
    if units is None:
        sizes = (*_LARGE, *_SMALL)
        size, units = next(((size, name) for size, name in sizes if num >= size), (1.0, "") if num == 0 else _SMALL[-1])
    else:
        size = {name: size for size, name in (*_LARGE, *_SMALL)}.get(units, 1.0)
    return f"{round(num / size, precision):g} {units}"


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(flops, units, precision)}FLOPS"


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(macs, units, precision)}MACs"


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(b, units, precision)}B"


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(duration, units, precision)}s"


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """With B for 10^9."""
    units = units.replace("B", "G") if units else units
    return number_to_string(params_num, units, precision).replace("G", "B").strip()
