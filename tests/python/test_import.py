"""What `import zerotorch` does with another torch, and without one."""

import os
import pathlib
import subprocess
import sys

import pytest
import zerotorch

PACKAGE = pathlib.Path(zerotorch.__file__).parent


def import_it(first: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, with packages in `first` before all others."""
    path = os.pathsep.join((str(first), str(PACKAGE.parent)))
    return subprocess.run(
        [sys.executable, *options, "-c", "import zerotorch; print(zerotorch.__version__)"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )


def make_torch(folder: pathlib.Path, version: str) -> None:
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('it need not be imported')\n")
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n")


def test_another_torch_is_said_at_once(tmp_path: pathlib.Path) -> None:
    if not (PACKAGE / "_torch_version.txt").exists():
        pytest.skip("this package does not know what it was built for")
    built = (PACKAGE / "_torch_version.txt").read_text().strip()
    minor = ".".join(built.split(".")[:2])
    make_torch(tmp_path, "2.7.1+cu126")
    ended = import_it(tmp_path)
    assert ended.returncode == 1
    assert f"ImportError: this zerotorch was built for torch {minor} and torch 2.7.1+cu126 is installed" in ended.stderr
    assert "or torch " + minor in ended.stderr


def test_a_patch_of_the_same_torch_will_do(tmp_path: pathlib.Path) -> None:
    built = (PACKAGE / "_torch_version.txt").read_text().strip() if (PACKAGE / "_torch_version.txt").exists() else "2.13.0"
    make_torch(tmp_path, ".".join(built.split("+")[0].split(".")[:2]) + ".9")
    ended = import_it(tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_no_torch_is_said_at_once(tmp_path: pathlib.Path) -> None:
    ended = import_it(tmp_path, "-S", "-s")  # without site-packages
    assert ended.returncode == 1
    assert "ImportError: zerotorch needs torch, which is not installed here: install " in ended.stderr
