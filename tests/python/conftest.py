"""The package is taken from the source tree unless it is installed."""

import importlib.util
import os
import pathlib
import sys

if importlib.util.find_spec("zerotorch") is None:
    PACKAGE = str(pathlib.Path(__file__).resolve().parents[2] / "python")
    sys.path.insert(0, PACKAGE)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
