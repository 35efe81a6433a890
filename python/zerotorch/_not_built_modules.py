"""Modules that exist by the table of what is not built alone: importing them succeeds, and using them says why."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from ._lazy import attach
from ._not_built import children, features, rows


class _Loader(importlib.abc.Loader):
    def exec_module(self, module: types.ModuleType) -> None:
        module.__doc__ = f"{features().get(module.__name__, 'Nothing in this package is built')}."
        module.__getattr__, module.__dir__ = attach(module.__name__)  # type: ignore[method-assign]

    def get_code(self, name: str) -> types.CodeType:
        """For `python -m`."""
        message = f"{name}: {features().get(name, 'it is not built')}"
        return compile(f"raise SystemExit({message!r})", f"<{name}>", "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Comes before the finder of files, to which a folder with nothing but stale bytecode is a package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{__package__}."):
            return None
        if (name not in rows() and not children(name)) or _has_file(name):
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), origin="not built", is_package=bool(children(name)))


def _has_file(name: str) -> bool:
    place = Path(__file__).parent.joinpath(*name.split(".")[1:])
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def install() -> None:
    """A second call does nothing. Local."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
