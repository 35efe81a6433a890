"""Loads the compiled part, after a look whether it is for the torch that is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def load() -> ModuleType:
    """Imports torch and zerotorch._C, and returns this. Raises ImportError that says what to do."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "zerotorch needs torch, which is not installed here: install the torch that this zerotorch was built for"
        ) from error
    folder = Path(__file__).parent
    built = _built_for(folder)
    if built and _minor(built) != _minor(torch.__version__):
        raise ImportError(
            f"this zerotorch was built for torch {_minor(built)} and torch {torch.__version__} is installed: "
            f"install zerotorch for torch {_minor(torch.__version__)} (from its sources: "
            f"pip install --no-build-isolation .), or torch {_minor(built)}"
        )
    if not list(folder.glob("_C.*.so")):
        raise ImportError(f"zerotorch is not built in {folder}: run make python, or pip install --no-build-isolation .")
    try:
        return importlib.import_module("zerotorch._C")
    except ImportError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ImportError(
            f"zerotorch cannot load its compiled part with Python {version} and torch {torch.__version__}: {error}"
        ) from error


def _built_for(folder: Path) -> str | None:
    """torch's version at build time; None where it is not told."""
    try:
        return (folder / "_torch_version.txt").read_text().strip() or None
    except OSError:
        return None


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
