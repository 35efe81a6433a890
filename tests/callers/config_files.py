"""What zerotorch says of DeepSpeed's JSON files in checkouts, for scripts/run_callers.py.

  python config_files.py CHECKOUTS REPOSITORY...     a line of JSON for each file: its path, stage, what is wrong

Files are found by their `zero_optimization`. What is "auto" is left out, as Trainer fills it in; a missing batch size
is 1.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any


def files(checkouts: pathlib.Path, repositories: list[str]) -> list[pathlib.Path]:
    paths = [path for name in repositories for path in (checkouts / name).rglob("*")]
    paths = [path for path in paths if path.suffix in (".json", ".conf") and path.is_file()]
    return sorted(path for path in paths if "zero_optimization" in path.read_text(errors="replace"))


def without_auto(section: dict[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in section.items() if value != "auto"}
    return {key: without_auto(value) if isinstance(value, dict) else value for key, value in left.items()}


def said_of(path: pathlib.Path) -> dict[str, Any]:
    from zerotorch.config import DeepSpeedConfig
    from zerotorch.errors import ZeroError

    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        return {"stage": None, "wrong": f"no JSON: {error}"}
    section = config.get("zero_optimization", {})
    if not isinstance(section, dict):
        return {"stage": None, "wrong": "no configuration"}
    config = without_auto(config)
    if not any(name in config for name in ("train_batch_size", "train_micro_batch_size_per_gpu")):
        config["train_micro_batch_size_per_gpu"] = 1
    try:
        return {"stage": DeepSpeedConfig(config).stage, "wrong": ""}
    except ZeroError as error:
        return {"stage": section.get("stage"), "wrong": f"{type(error).__name__}: {error}"}


def main() -> None:
    checkouts, *repositories = sys.argv[1:]
    for path in files(pathlib.Path(checkouts), repositories):
        print(json.dumps({"file": str(path.relative_to(checkouts)), **said_of(path)}), flush=True)


if __name__ == "__main__":
    main()
