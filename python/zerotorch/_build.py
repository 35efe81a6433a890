"""Loads the compiled part, after a look whether it is for the torch that is installed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType


def check_torch() -> None:
    """Looks whether the torch that is installed is the one of this package, without importing it, which takes seconds.

    Raises ImportError that says what to do.
    """
    built = _built_for(Path(__file__).parent)
    spec = importlib.util.find_spec("torch") if "torch" not in sys.modules else sys.modules["torch"].__spec__
    if spec is None or not spec.origin:
        which = f"torch {_minor(built)}" if built else "the torch that this zerotorch was built for"
        raise ImportError(f"zerotorch needs torch, which is not installed here: install {which}")
    installed = _version_in(Path(spec.origin).parent)
    if built and installed and _minor(built) != _minor(installed):
        raise ImportError(
            f"this zerotorch was built for torch {_minor(built)} and torch {installed} is installed: "
            f"install zerotorch for torch {_minor(installed)} (from its sources: "
            f"pip install --no-build-isolation .), or torch {_minor(built)}"
        )


def load() -> ModuleType:
    """Imports torch and zerotorch._C, and returns this. Raises ImportError that says what to do."""
    check_torch()
    import torch

    folder = Path(__file__).parent
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


def _version_in(package: Path) -> str | None:
    """What torch says of its version, which it writes when it is built; None where it says it otherwise."""
    try:
        found = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", (package / "version.py").read_text(), re.MULTILINE)
    except OSError:
        return None
    return found.group(1) if found else None


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
