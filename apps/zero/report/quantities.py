"""Numbers with their units, as `zero train` writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def human_nbytes(nbytes: float) -> str:
    for unit, size, digits in (("TB", 1e12, 2), ("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if nbytes >= size:
            return f"{nbytes / size:.{digits}f} {unit}"
    return f"{nbytes:.0f} bytes"


def human_count(count: float) -> str:
    for unit, size, digits in (("B", 1e9, 2), ("M", 1e6, 1), ("k", 1e4, 1)):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.{digits}f} {unit}"
    return f"{count:.0f}"


def duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole // 60 % 60} min"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def or_else(value: Any, text: Callable[[Any], str], other: str) -> str:
    return other if value is None else text(value)


def or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return or_else(value, text, "–")


def or_nothing(value: Any, text: Callable[[Any], str]) -> str:
    return or_else(value, text, "")
