"""Curves over the course of training: averaged, and thinned out where they have more points than one can see."""

from __future__ import annotations

import array
import math
from collections.abc import Iterable
from typing import Any

from limits import MOST_POINTS
from run_folders import Metrics


def averaged(values: Iterable[float], steps: int) -> array.array[float]:
    """The mean over about so many steps before, as `zero train` prints it. What is NaN is a gap, and left out after."""
    kept, total, weight, result = 1 - 1 / steps, 0.0, 0.0, array.array("d")
    for value in values:
        if value == value:
            total = kept * total + (1 - kept) * value
            weight = kept * weight + (1 - kept)
        result.append(total / weight if weight and value == value else math.nan)
    return result


def thinned(values: array.array[float]) -> list[int]:
    """Indices: of all, or of the first, the last, and of each of many equal pieces the smallest, the largest, and one
    that is NaN."""
    count = len(values)
    if count <= MOST_POINTS:
        return list(range(count))
    pieces = (MOST_POINTS - 2) // 3
    kept = {0, count - 1}
    for piece in range(pieces):
        low = high = gap = -1
        for i in range(piece * count // pieces, (piece + 1) * count // pieces):
            value = values[i]
            if value != value:
                gap = i
            elif low < 0:
                low = high = i
            elif value < values[low]:
                low = i
            elif value > values[high]:
                high = i
        kept.update(i for i in (low, high, gap) if i >= 0)
    return sorted(kept)


def last_finite(values: Iterable[float]) -> float | None:
    found = None
    for value in values:
        found = value if value == value else found
    return found


def no_nan(value: float) -> float | int | None:
    """As JSON has it: whole numbers without a point, None for NaN."""
    if value != value:
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else value


def curve(metrics: Metrics, values: array.array[float], indices: list[int]) -> dict[str, list[Any]]:
    columns = {"step": metrics.step, "tokens": metrics.tokens, "seconds": metrics.seconds, "y": values}
    return {name: [no_nan(column[i]) for i in indices] for name, column in columns.items()}


def validation_curve(metrics: Metrics) -> dict[str, list[Any]]:
    values = array.array("d", (one["y"] for one in metrics.validations))
    chosen = [metrics.validations[i] for i in thinned(values)]
    return {name: [no_nan(one[name]) for one in chosen] for name in ("step", "tokens", "seconds", "y")}


def curves_of(metrics: Metrics, average: int) -> dict[str, Any]:
    result = {}
    for name, values in metrics.columns.items():
        result[name] = curve(metrics, values, thinned(values))
        if name in ("loss", "tokens_per_s"):
            mean = averaged(values, average)
            result[name + "_average"] = curve(metrics, mean, thinned(mean))
    result["val_loss"] = validation_curve(metrics)
    skipped = array.array("d", (metrics.columns["loss"][i] for i in metrics.skipped))
    result["skipped"] = curve(metrics, metrics.columns["loss"], [metrics.skipped[i] for i in thinned(skipped)])
    return result
