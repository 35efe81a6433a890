"""Reads run folders of `zero train`."""

from __future__ import annotations

import array
import json
import math
import os
from pathlib import Path
from typing import Any

from json_files import Refused, number_at, of_path, one_line, read_json, read_json_if_there

CURVES = ("loss", "tokens_per_s", "grad_norm", "lr")


class Metrics:
    """The columns of metrics.jsonl. What is no finite number is NaN."""

    def __init__(self) -> None:
        self.step, self.tokens, self.seconds = array.array("d"), array.array("d"), array.array("d")
        self.columns = {name: array.array("d") for name in CURVES}
        self.validations: list[dict[str, float]] = []
        self.skipped: list[int] = []  # indices
        self.cut_off = False

    def add(self, line: dict[str, Any]) -> None:
        """Throws ValueError."""
        step = number(line, "step")
        if math.isnan(step):
            raise ValueError('has no "step"')
        if "val_loss" in line:
            self.add_validation(step, line)
        elif "loss" in line:
            self.add_step(step, line)

    def add_validation(self, step: float, line: dict[str, Any]) -> None:
        at = {"tokens": self.tokens[-1], "seconds": self.seconds[-1]} if self.step else {"tokens": 0, "seconds": 0}
        bits, baseline = number(line, "val_bits_per_byte"), number(line, "baseline")
        self.validations.append({"step": step, **at, "y": number(line, "val_loss"), "bits": bits, "baseline": baseline})

    def add_step(self, step: float, line: dict[str, Any]) -> None:
        if line.get("skipped") is True:
            self.skipped.append(len(self.step))
        self.step.append(step)
        self.tokens.append(number(line, "tokens"))
        self.seconds.append(number(line, "seconds"))
        for name, column in self.columns.items():
            column.append(number(line, name))

    def not_numbers(self) -> int:
        return sum(1 for value in self.columns["loss"] if value != value)


def number(line: dict[str, Any], name: str) -> float:
    value = line.get(name)
    if value is None:
        return math.nan
    if type(value) is not float and type(value) is not int:
        raise ValueError(f'"{name}" is no number')
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def read_line(metrics: Metrics, line: bytes) -> None:
    """Throws ValueError or RecursionError."""
    parsed = json.loads(line)
    if not isinstance(parsed, dict):
        raise ValueError("is not a JSON object")
    metrics.add(parsed)


def read_metrics(path: Path) -> Metrics:
    metrics = Metrics()
    try:
        with path.open("rb") as lines:
            for at, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                try:
                    read_line(metrics, line)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):  # the last one; its end was not written
                        metrics.cut_off = True
                        break
                    raise Refused(f"{of_path(path)}:{at}: is no line of metrics: {one_line(error)}") from None
    except OSError as error:
        raise Refused(f"{of_path(path)}: {error.strerror}") from None
    return metrics


class Run:
    """A run folder, as it was read; without its traces, which are large."""

    def __init__(self, folder: Path) -> None:
        for name in ("metrics.jsonl", "plan.json"):
            if not (folder / name).is_file():
                what = "is no run: it has no " + name if folder.is_dir() else f"is no folder (of a run, with {name})"
                raise Refused(f"{of_path(folder)}: {what}")
        self.folder = Path(os.path.abspath(folder))
        self.name = of_path(self.folder.name or "/")
        self.metrics = read_metrics(folder / "metrics.jsonl")
        self.plan = read_json(folder / "plan.json")
        self.summary = read_json_if_there(folder / "summary.json")
        self.config = read_json_if_there(folder / "config.json")
        self.environment = read_json_if_there(folder / "environment.json")

    def steps(self) -> int:
        return int(self.metrics.step[-1]) if self.metrics.step else 0

    def ranks(self) -> float | None:
        return number_at(self.summary, "ranks") or number_at(self.plan, "ranks")

    def summary_is_of_now(self) -> bool:
        """It is of an earlier start where metrics have more steps."""
        return self.summary is not None and number_at(self.summary, "steps") == self.steps()

    def loss_unit(self) -> str:
        return "nats per token" if (number_at(self.plan, "token_nbytes") or 1) > 1 else "nats per byte"


def tell_apart(runs: list[Run]) -> None:
    """Those of one name get as much of their paths as it takes, and those of one path a number."""
    depth, most = 1, max(len(run.folder.parts) for run in runs)
    clashing = [run for run in runs if sum(other.name == run.name for other in runs) > 1]
    while depth < most and len({run.name for run in clashing}) < len({run.folder for run in clashing}):
        depth += 1
        for run in clashing:
            run.name = of_path(Path(*run.folder.parts[-depth:]))
    for run in clashing:
        same = [other for other in runs if other.folder == run.folder]
        if len(same) > 1 and run is same[0]:
            for count, other in enumerate(same, 1):
                other.name = f"{other.name} ({count})"
