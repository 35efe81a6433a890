"""The distribution that stands in for deepspeed: what pip and fresh interpreters see."""

import pathlib
import subprocess
import sys

import pytest
from support import python

SHIM = pathlib.Path(__file__).parents[2] / "python/deepspeed_shim"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    pytest.importorskip("setuptools", minversion="77")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for file in ("pyproject.toml", "deepspeed/__init__.py"):
        (source / file).parent.mkdir(exist_ok=True)
        (source / file).write_text((SHIM / file).read_text())  # a build writes beside its sources
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(folder), str(source)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return folder


def seen(installed: pathlib.Path, *arguments: str) -> str:
    """What a Python prints that finds the distribution, and the package it stands for."""
    import zerotorch

    package = pathlib.Path(zerotorch.__file__).parents[1]
    done = python(*arguments, PYTHONPATH=f"{installed}:{package}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_zerotorch(installed: pathlib.Path) -> None:
    code = """
import deepspeed, zerotorch, importlib.metadata, importlib.util
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
import deepspeed.runtime.zero.partition_parameters as theirs
import zerotorch.runtime.zero.partition_parameters as ours
print(theirs is ours, deepspeed.initialize is zerotorch.initialize, deepspeed.__version__)
print(importlib.metadata.version("deepspeed"), importlib.util.find_spec("deepspeed") is not None)
"""
    version = "0.19.8+zerotorch"
    assert seen(installed, "-c", code).split("\n") == [f"True True {version}", f"{version} True"]


def test_its_version_is_the_one_that_is_reported() -> None:
    from _zerotorch_as_deepspeed import DEEPSPEED_VERSION

    assert f'version = "{DEEPSPEED_VERSION}"' in (SHIM / "pyproject.toml").read_text()


def test_its_command_starts_ranks(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text("import os, deepspeed; os.write(1, (os.environ['RANK'] + chr(10)).encode())\n")
    printed = seen(installed, str(installed / "bin/deepspeed"), "--num_gpus=2", str(tmp_path / "program.py"))
    assert sorted(printed.split()) == ["0", "1"]
