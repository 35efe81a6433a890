"""The logger "DeepSpeed", on standard error. Imports no torch."""

import functools
import logging
import sys
from collections.abc import Sequence

from zerotorch.core.ranks import rank

__all__ = [
    "get_current_level",
    "log_dist",
    "log_dist_once",
    "logger",
    "print_dist",
    "set_log_level_from_string",
    "should_log_le",
    "warning_once",
]

LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error", "critical")}


class _StandardError(logging.Handler):
    """Writes to what sys.stderr is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def _make_logger() -> logging.Logger:
    made = logging.getLogger("DeepSpeed")
    made.setLevel(logging.WARNING)
    made.propagate = False
    if not made.handlers:
        handler = _StandardError()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(filename)s:%(lineno)d: %(message)s"))
        made.addHandler(handler)
    return made


logger = _make_logger()


@functools.cache
def warning_once(message: str) -> None:
    """Logs a warning the first time that it is given. Local."""
    logger.warning(message, stacklevel=2)


def log_dist(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """Logs `[Rank r] message` on these ranks; [-1]: on all, None: on rank 0. Local."""
    if _is_meant(ranks):
        logger.log(level, _with_rank(message), stacklevel=2)


def log_dist_once(message: str, ranks: Sequence[int] | None = None, level: int = logging.INFO) -> None:
    """`log_dist`, the first time that it is called with these arguments. Local."""
    _log_dist_once(message, None if ranks is None else tuple(ranks), level)


@functools.cache
def _log_dist_once(message: str, ranks: tuple[int, ...] | None, level: int) -> None:
    if _is_meant(ranks):
        logger.log(level, _with_rank(message), stacklevel=3)


def print_dist(message: str, ranks: Sequence[int] | None = None) -> None:
    """Prints what `log_dist` would log, at any level. Local."""
    if _is_meant(ranks):
        print(_with_rank(message))


def set_log_level_from_string(log_level_str: str, custom_logger: logging.Logger | None = None) -> None:
    """Sets the level of a logger (None: DeepSpeed's) to debug, info, warning, error or critical.

    Raises ValueError for another one. Local.
    """
    (custom_logger or logger).setLevel(_level(log_level_str))


def get_current_level() -> int:
    """The level of the logger, as in `logging`. Local."""
    return logger.getEffectiveLevel()


def should_log_le(max_log_level_str: str) -> bool:
    """Whether messages of this level are logged. Raises ValueError for a level that there is not. Local."""
    return get_current_level() <= _level(max_log_level_str)


def _level(name: str) -> int:
    if name.lower() not in LEVELS:
        raise ValueError(f"{name} is no level of logging; there are {', '.join(LEVELS)}")
    return int(LEVELS[name.lower()])


def _is_meant(ranks: Sequence[int] | None) -> bool:
    return ranks is None and rank() == 0 or ranks is not None and (-1 in ranks or rank() in ranks)


def _with_rank(message: str) -> str:
    return f"[Rank {rank()}] {message}"
