"""Programs in processes of their own."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

TIMEOUT_S = 60


def needs(*libraries: str) -> None:
    """Skips a module of tests where a library is not installed. Imports none, as zerotorch goes before them."""
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed", allow_module_level=True)


def python(*arguments: str, timeout: float = TIMEOUT_S, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter with `environment` on top of ours, and without what a launcher may have put there."""
    launcher = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in launcher}
    return subprocess.run(
        [sys.executable, *arguments], env={**clean, **environment}, capture_output=True, text=True, timeout=timeout
    )


def program(code: str, **environment: str) -> str:
    """What `code` prints; its traceback is in the failure when it does not end well."""
    done = python("-c", textwrap.dedent(code), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def script(folder: pathlib.Path, code: str) -> str:
    """The path of a new script."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code))
    return str(path)
