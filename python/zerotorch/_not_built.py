"""Stand-ins for parts of DeepSpeed that are not built: they can be imported, named in isinstance and derived from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from ._not_built_table import FEATURES
from .errors import NotBuiltError


class _NotBuilt(type):
    """Class methods and constants of a class that is not built."""

    _message: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotBuiltError(cls._message)


def not_built_class(name: str, message: str) -> type[Any]:
    """A class that raises NotBuiltError with `message`.

    It does when it, or a class derived from it, is instantiated, and where something of the class is used.
    """

    def refuse(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(message)

    return _NotBuilt(name, (), {"__new__": refuse, "__doc__": message, "_message": message})


def not_built_function(name: str, message: str) -> Callable[..., NoReturn]:
    """A function that raises NotBuiltError with `message`."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(message)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = message
    return refuse


@functools.cache  # one class for all modules that name it
def stand_in(name: str, feature: str, remedy: str) -> Any:
    """A class for a name that begins with a capital, else a function."""
    message = f"{name}: {sentence(feature, remedy)}"
    return (not_built_class if name[:1].isupper() else not_built_function)(name, message)


def sentence(feature: str, remedy: str) -> str:
    """What the errors say of a feature."""
    return f"{feature} is not built" + (f"; {remedy}" if remedy else "")


@functools.cache
def rows() -> dict[str, dict[str, tuple[str, str]]]:
    """By full module name: names, with their feature and its remedy."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for feature, remedy, modules in FEATURES:
        for module, names in modules.items():
            row = found.setdefault(f"{__package__}.{module}", {})
            row.update({name: (feature, remedy) for name in names.split()})
    return found


@functools.cache
def features() -> dict[str, str]:
    """By full module name: the sentence about its feature."""
    found: dict[str, str] = {}
    for feature, remedy, modules in FEATURES:
        for module in modules:
            found.setdefault(f"{__package__}.{module}", sentence(feature, remedy))
    return found


@functools.cache
def children(module: str) -> frozenset[str]:
    """The submodules that the table has under a module."""
    inside = f"{module}."
    return frozenset(name[len(inside) :].partition(".")[0] for name in rows() if name.startswith(inside))
