"""DeepSpeed's tree of modules where no file of that name has a part of it: `_tables` says what is there, and this serves it.

A module may be another one under a second name, have members of other modules, which are imported when they are first
asked for, and have members that are not built, which raise when they are used. Modules with a file of their own get
the same by `attach`. All are found on `__path__`, after the files: imports, find_spec(), pkgutil and `python -m` see them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from _zerotorch_as_deepspeed import Alias

from zerotorch.errors import NotBuiltError

from ._tables import TABLE

_ON_PATH = "table of zerotorch: "  # what an entry of `__path__` begins with, before the package's name
_NOTHING = "Nothing in this package is built"
_FOLDER = Path(__file__).parent


def attach(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module: submodules, and what the table says of it. What was imported once
    stays in the module. Local."""
    module = sys.modules[name]
    if hasattr(module, "__path__"):
        module.__path__ = [*module.__path__, _ON_PATH + name]
    origins, lacking = members.get(name, {}), not_built.get(name, {})

    def getattr_(member: str) -> Any:
        if member in origins:
            value = getattr(importlib.import_module(origins[member]), member)
        elif member in lacking:
            value = stand_in(member, *lacking[member])
            value.__module__ = name  # for pickles by name
        elif not member.startswith("_") and _is_submodule(module, member):
            return importlib.import_module(f"{name}.{member}")
        else:
            raise AttributeError(f"module {name!r} has no attribute {member!r}")
        setattr(module, member, value)
        return value

    def dir_() -> list[str]:
        found = {one.name for one in pkgutil.iter_modules(getattr(module, "__path__", [])) if one.name[0] != "_"}
        return sorted({*vars(module), *found, *origins, *lacking})

    return getattr_, dir_


def _is_submodule(module: types.ModuleType, member: str) -> bool:
    return hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{member}") is not None


# ---- the table by full names of modules ----

#: Modules that are another one.
aliases: dict[str, str] = {}
#: By module: members, and the modules that have them.
members: dict[str, dict[str, str]] = {}
#: By module: names that are not built, with their feature and its remedy.
not_built: dict[str, dict[str, tuple[str, str]]] = {}


def _read_table() -> None:
    feature = remedy = ""
    for row in TABLE.replace("\n ", " ").splitlines():
        module, _, rest = row.partition(":")
        if row.startswith("["):
            feature, _, remedy = row[1:].partition("]")
        elif " = " in row:
            module, _, other = row.partition(" = ")
            aliases[_full(module)] = _full(other)
        elif " <" in row:
            module, _, origin = module.partition(" <")
            members.setdefault(_full(module), {}).update(dict.fromkeys(rest.split(), _full(origin.strip())))
        elif row:
            names = dict.fromkeys(rest.split(), (feature, remedy.strip()))
            not_built.setdefault(_full(module), {}).update(names)
            _features.setdefault(_full(module), sentence(feature, remedy.strip()))


_features: dict[str, str] = {}  # what is said of a module of which nothing is built


def _full(module: str) -> str:
    return f"{__package__}.{module}" if module != "." else str(__package__)


@functools.cache
def _names() -> frozenset[str]:
    """Modules in the table, and the packages that they are in."""
    parts = [name.split(".") for name in (*aliases, *members, *not_built)]
    return frozenset(".".join(one[:end]) for one in parts for end in range(2, len(one) + 1))


@functools.cache
def _children(package: str) -> frozenset[str]:
    inside = f"{package}."
    return frozenset(name[len(inside) :].partition(".")[0] for name in _names() if name.startswith(inside))


def _place(name: str) -> Path:
    return _FOLDER.joinpath(*name.split(".")[1:])


def _is_package(name: str) -> bool:
    return bool(_children(name)) or _place(name).is_dir()


# ---- their import ----


class _Loader(importlib.abc.Loader):
    """Of a module without a file."""

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"{_features.get(name, _NOTHING)}." if name in not_built else f"`{name.replace('zerotorch', 'deepspeed', 1)}`."
        module.__getattr__, module.__dir__ = attach(name)  # type: ignore[method-assign]
        if name in members:
            module.__all__ = [*members[name]]  # type: ignore[attr-defined]

    def get_code(self, name: str) -> types.CodeType:
        """For `python -m`."""
        return compile(f"raise SystemExit({f'{name}: {_features.get(name, _NOTHING)}'!r})", f"<{name}>", "exec")


class _Finder:
    """Of an entry of a package's `__path__`."""

    def __init__(self, entry: str) -> None:
        if not entry.startswith(_ON_PATH):
            raise ImportError(f"{entry} is no table of zerotorch")
        self._package = entry.removeprefix(_ON_PATH)

    def find_spec(self, name: str, target: types.ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name in aliases:
            return Alias(aliases[name]).spec_of(name)
        if name not in _names():
            return None
        origin = "not built" if name in not_built and name not in members else "table"
        spec = importlib.machinery.ModuleSpec(name, _Loader(), origin=origin, is_package=_is_package(name))
        if spec.submodule_search_locations is not None and _place(name).is_dir():
            spec.submodule_search_locations.append(str(_place(name)))
        return spec

    def iter_modules(self, prefix: str = "") -> Iterator[tuple[str, bool]]:
        """For pkgutil, which lists files itself."""
        for child in sorted(_children(self._package)):
            name = f"{self._package}.{child}"
            if not _place(name).with_suffix(".py").exists() and not (_place(name) / "__init__.py").exists():
                yield prefix + child, name not in aliases and _is_package(name)


sys.path_hooks.append(_Finder)


# ---- what is not built: it can be imported, named in isinstance and derived from ----


class _NotBuilt(type):
    """Class methods and constants of a class that is not built."""

    _message: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotBuiltError(cls._message)


@functools.cache  # one class for all modules that name it
def stand_in(name: str, feature: str, remedy: str) -> Any:
    """A class for a name that begins with a capital, else a function. They raise NotBuiltError: the class where it, or
    one that is derived from it, is instantiated, and where something of the class is used."""
    message = f"{name}: {sentence(feature, remedy)}"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(message)

    if name[:1].isupper():
        return _NotBuilt(name, (), {"__new__": refuse, "__doc__": message, "_message": message})
    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = message
    return refuse


def sentence(feature: str, remedy: str) -> str:
    """What the errors say of a feature."""
    return f"{feature} is not built" + (f"; {remedy}" if remedy else "")


_read_table()
