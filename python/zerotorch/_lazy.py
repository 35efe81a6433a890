"""Modules whose members are imported when they are first asked for, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ._not_built import children, rows, stand_in


def attach(
    module_name: str, names: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module.

    Submodules are imported when they are asked for; `names` says for other members which module each is taken from;
    what the table of parts that are not built has of this module raises when it is used. What was imported once stays
    in the module. Local.
    """
    origins = dict(names or {})
    not_built = rows().get(module_name, {})

    def getattr_(name: str) -> Any:
        if name in origins:
            value = getattr(importlib.import_module(origins[name]), name)
        elif name in not_built:
            value = stand_in(name, *not_built[name])
        elif not name.startswith("_") and _is_submodule(module_name, name):
            return importlib.import_module(f"{module_name}.{name}")
        else:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        setattr(sys.modules[module_name], name, value)
        return value

    def dir_() -> list[str]:
        folders = getattr(sys.modules[module_name], "__path__", [])
        files = {found.name for found in pkgutil.iter_modules(folders) if not found.name.startswith("_")}
        return sorted({*vars(sys.modules[module_name]), *files, *children(module_name), *origins, *not_built})

    return getattr_, dir_


def _is_submodule(module_name: str, name: str) -> bool:
    if not hasattr(sys.modules[module_name], "__path__"):
        return False
    return importlib.util.find_spec(f"{module_name}.{name}") is not None
