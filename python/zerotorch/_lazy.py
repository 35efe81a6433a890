"""Modules whose members are imported when they are first asked for, so that importing the package stays cheap."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def attach(
    module_name: str, submodules: Iterable[str] = (), names: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a module.

    `submodules` are imported as `module_name.<submodule>`; `names` says for each other member which module it is taken
    from. What was imported once stays in the module. Local.
    """
    children = frozenset(submodules)
    origins = dict(names or {})

    def getattr_(name: str) -> Any:
        if name in children:
            return importlib.import_module(f"{module_name}.{name}")
        if name not in origins:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(origins[name]), name)
        setattr(sys.modules[module_name], name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(sys.modules[module_name]), *children, *origins})

    return getattr_, dir_
