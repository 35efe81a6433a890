#!/usr/bin/env python3
"""Draws what `zero train` has left in run folders, as one page of HTML that needs nothing else. Needs plotly.

    python report_runs.py --out PAGE.html [--title TEXT] RUN [RUN ...]

A run folder has metrics.jsonl and plan.json; summary.json, config.json, environment.json and trace/rank<N>.json are
used where they are there. The page has its data as JSON, in the element "zerotorch-report"; the tables are written
from it here, the charts are drawn from it by the script at the end of this file. Exit code 2 for what the user can
mend.
"""

from __future__ import annotations

import argparse
import array
import datetime
import html
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MOST_POINTS = 4000  # of a curve; beyond these it is thinned out
MOST_SPANS = 4000  # of a row of the timeline
MOST_LANES = 6  # of calls that overlap
MOST_RANKS = 16  # of a run, as bars of memory and with their traces
MOST_SIDE_BY_SIDE = 5  # runs, as columns of the first table
SHORTEST_AVERAGE = 10  # steps; of `zero train`'s running average, too

COLOURS = ["#1f6fb4", "#d9631e", "#2e8f5b", "#9a4fb0", "#b8860b", "#c0395b", "#3c8f99", "#666666"]
DASHES = ["solid", "dash", "dot", "dashdot"]
PHASES = {"data": "#b4bac2", "forward": "#4c8dc9", "backward": "#e09a4f", "step": "#6fae75"}
PARTS = {
    "gradient_copy": "#8c6bb1",
    "reduce": "#d6604d",
    "gather": "#41a6a6",
    "wait": "#b4bac2",
    "norm": "#c9a227",
    "update": "#3f8f5a",
    "publish": "#d987b5",
}
KINDS = {
    "parameters": "#4c8dc9",
    "gather buffers": "#a3cbe8",
    "master weights": "#6fae75",
    "optimizer": "#e09a4f",
    "optimizer states": "#e09a4f",
    "gradients": "#d6604d",
    "buckets": "#f0b09a",
    "staging": "#d3c06a",
    "offload buffers": "#b4bac2",
    "activations": "#9a86c4",
}
CALLS = {
    "all_gather": "#41a6a6",
    "reduce_scatter": "#d6604d",
    "all_reduce": "#c9a227",
    "broadcast": "#8c6bb1",
    "barrier": "#b4bac2",
    "read": "#4c8dc9",
    "write": "#e09a4f",
}
PHASES_OF_A_TRACE = ("forward", "backward", "forward and backward", "step")
OF_OPTIONS = " (zero train)"  # after the names of its options, among keys of the configuration
CURVES = ("loss", "tokens_per_s", "grad_norm", "lr")


class Refused(Exception):
    """What the user can mend."""


# ---- Texts, as `zero train` writes them


def human_nbytes(nbytes: float) -> str:
    for unit, size, digits in (("GB", 1e9, 2), ("MB", 1e6, 1), ("kB", 1e3, 1)):
        if nbytes >= size:
            return f"{nbytes / size:.{digits}f} {unit}"
    return f"{nbytes:.0f} bytes"


def human_count(count: float) -> str:
    for unit, size, digits in (("G", 1e9, 2), ("M", 1e6, 1), ("k", 1e4, 1)):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.{digits}f} {unit}"
    return f"{count:.0f}"


def duration(seconds: float) -> str:
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole // 60 % 60} min"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "–" if value is None else text(value)


def escaped(text: object) -> str:
    return html.escape(str(text), quote=True)


def of_path(path: str | Path) -> str:
    """File names may be no Unicode."""
    return os.fsencode(path).decode(errors="replace")


# ---- Reading


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{of_path(path)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{of_path(path)}: is no JSON: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise Refused(f"{of_path(path)}: is not a JSON object")
    return found


def read_json_if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def number_at(found: Any, *keys: str) -> float | None:
    """A finite number in objects within objects."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        return found if math.isfinite(found) else None
    except OverflowError:
        return None


def text_at(found: Any, *keys: str) -> str:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""


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
            at = {"tokens": self.tokens[-1], "seconds": self.seconds[-1]} if self.step else {"tokens": 0, "seconds": 0}
            bits, baseline = number(line, "val_bits_per_byte"), number(line, "baseline")
            value = number(line, "val_loss")
            self.validations.append({"step": step, **at, "y": value, "bits": bits, "baseline": baseline})
            return
        if "loss" not in line:
            return
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


def read_metrics(path: Path) -> Metrics:
    metrics = Metrics()
    try:
        with path.open("rb") as lines:
            for at, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                try:
                    parsed = json.loads(line)
                    if not isinstance(parsed, dict):
                        raise ValueError("is not a JSON object")
                    metrics.add(parsed)
                except (ValueError, RecursionError) as error:
                    if not line.endswith(b"\n"):  # the last one; its end was not written
                        metrics.cut_off = True
                        break
                    raise Refused(f"{of_path(path)}:{at}: is no line of metrics: {one_line(error)}") from None
    except OSError as error:
        raise Refused(f"{of_path(path)}: {error.strerror}") from None
    return metrics


class Run:
    """A run folder, as it was read."""

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


# ---- Curves


def averaged(values: Iterable[float], steps: int) -> array.array[float]:
    """The mean over about so many steps before, as `zero train` prints it. What is NaN is left out."""
    kept, total, weight, result = 1 - 1 / steps, 0.0, 0.0, array.array("d")
    for value in values:
        if value == value:
            total = kept * total + (1 - kept) * value
            weight = kept * weight + (1 - kept)
        result.append(total / weight if weight else math.nan)
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


def no_nan(value: float) -> float | int | None:
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


# ---- Traces


class Trace:
    """What a rank did, in microseconds."""

    def __init__(self, path: Path) -> None:
        found = read_json(path)
        events = found.get("traceEvents")
        if not isinstance(events, list):
            raise Refused(f'{of_path(path)}: is no trace: it has no "traceEvents"')
        self.left_out = int(number_at(found, "metadata", "events_left_out") or 0)
        self.spans: list[dict[str, Any]] = []  # name, what, begin, end, thread
        self.calls: dict[str, list[dict[str, Any]]] = {"communication": [], "disk": []}
        self.kinds: list[tuple[float, dict[str, float]]] = []
        self.resident: list[tuple[float, float]] = []
        self.thread_names: dict[Any, str] = {}
        self.open: dict[tuple[str, Any], list[dict[str, Any]]] = {}
        for event in events:
            if isinstance(event, dict):
                self.take(event)
        for calls in self.open.values():  # they did not end in the trace
            for call in calls:
                self.calls[call["category"]].append(call | {"end": math.inf})
        self.spans.sort(key=lambda span: (span["begin"], -span["end"]))
        for calls in self.calls.values():
            calls.sort(key=lambda call: call["begin"])
        self.kinds.sort(key=lambda sample: sample[0])
        self.resident.sort()

    def take(self, event: dict[str, Any]) -> None:
        phase, at, name = event.get("ph"), number_at(event, "ts"), text_at(event, "name")
        if phase == "M" and name == "thread_name":
            self.thread_names[str(event.get("tid"))] = text_at(event, "args", "name")
        elif at is None:
            return
        elif phase == "X":
            self.take_span(event, name, at)
        elif phase in ("b", "e") and event.get("cat") in self.calls:
            self.take_call(event, name, at)
        elif phase == "C" and name == "memory by kind":
            args = event.get("args")
            kinds = {kind: number_at(args, kind) for kind in args} if isinstance(args, dict) else {}
            self.kinds.append((at, {kind: value for kind, value in kinds.items() if value is not None}))
        elif phase == "C" and name == "process memory":
            resident = number_at(event, "args", "resident")
            if resident is not None:
                self.resident.append((at, resident))

    def take_span(self, event: dict[str, Any], name: str, at: float) -> None:
        length = number_at(event, "dur")
        if length is None or not (name in PHASES_OF_A_TRACE or name in PARTS):
            return
        span = {"name": name, "what": text_at(event, "args", "what"), "begin": at, "end": at + max(0.0, length)}
        self.spans.append(span | {"thread": str(event.get("tid"))})

    def take_call(self, event: dict[str, Any], name: str, at: float) -> None:
        key = (str(event.get("cat")), str(event.get("id")))
        if event["ph"] == "b":
            operation, _, what = name.partition(" ")
            call: dict[str, Any] = {"category": key[0], "name": operation, "what": what, "begin": at}
            self.open.setdefault(key, []).append(call | {"nbytes": number_at(event, "args", "nbytes")})
        elif self.open.get(key):
            call = self.open[key].pop(0)
            self.calls[key[0]].append(call | {"end": max(at, call["begin"])})

    def training_thread(self) -> str:
        return next((span["thread"] for span in self.spans if span["name"] in PHASES_OF_A_TRACE), "1")

    def steps(self) -> list[tuple[float, float, str]]:
        """When each whole optimizer step began and ended, and which it was."""
        mine = [span for span in self.spans if span["thread"] == self.training_thread()]
        found, begin = [], None
        for span in mine:
            begin = span["begin"] if begin is None else begin
            if span["name"] == "step" and span["what"] != "micro-batch":
                found.append((begin, span["end"], span["what"]))
                begin = None
            elif found and span["begin"] < found[-1][1]:  # a part of that step
                begin = None
        return found

    def extent(self) -> tuple[float, float, str]:
        times = [time for span in self.spans for time in (span["begin"], span["end"])]
        times += [call["begin"] for calls in self.calls.values() for call in calls] + [at for at, _ in self.kinds]
        return (min(times), max(times), "") if times else (0.0, 0.0, "")


def windows_of(traces: dict[int, Trace]) -> dict[int, tuple[float, float, str]]:
    """The last step that all ranks have whole; on one axis where their clocks agree."""
    steps = {rank: trace.steps() for rank, trace in traces.items()}
    last = min(map(len, steps.values())) - 1
    windows = {rank: steps[rank][last] if last >= 0 else trace.extent() for rank, trace in traces.items()}
    begin, end = max(one[0] for one in windows.values()), min(one[1] for one in windows.values())
    if begin < end:
        first, final = min(one[0] for one in windows.values()), max(one[1] for one in windows.values())
        windows = {rank: (first, final, one[2]) for rank, one in windows.items()}
    return windows


def in_lanes(spans: list[dict[str, Any]], most: int) -> tuple[list[list[dict[str, Any]]], int]:
    """Spans that overlap, one above the other; and how many there was no lane for."""
    lanes: list[list[dict[str, Any]]] = []
    left_out = 0
    for span in spans:
        lane = next((lane for lane in lanes if lane[-1]["end"] <= span["begin"]), None)
        if lane is not None:
            lane.append(span)
        elif len(lanes) < most:
            lanes.append([span])
        else:
            left_out += 1
    return lanes, left_out


def merged(spans: list[dict[str, Any]], short: float) -> list[dict[str, Any]]:
    """Neighbours of one name that nobody could see apart become one."""
    result: list[dict[str, Any]] = []
    for span in spans:
        last = result[-1] if result else None
        length = span["end"] - span["begin"]
        is_near = last is not None and span["begin"] - last["end"] < short and length < short
        if last is not None and is_near and last["name"] == span["name"] and last["first"] < short:
            last["count"] += 1
            last["busy"] += length
            last["end"] = span["end"]
            last["nbytes"] = (last["nbytes"] or 0) + (span.get("nbytes") or 0)
        else:
            result.append({"count": 1, "first": length, "busy": length, "nbytes": None} | span)
    return result


def row(label: str, spans: list[dict[str, Any]], window: tuple[float, float, str]) -> tuple[dict[str, Any], int]:
    """One row of the timeline in milliseconds since the window began, and how many of its spans are left out."""
    begin, end, _ = window
    drawn = merged(spans, (end - begin) / 1500)
    longest = sorted(drawn, key=lambda span: span["begin"] - span["end"])[:MOST_SPANS]
    longest.sort(key=lambda span: span["begin"])
    columns: dict[str, Any] = {"label": label}
    columns["begin"] = [round((span["begin"] - begin) / 1e3, 4) for span in longest]
    columns["ms"] = [round((span["end"] - span["begin"]) / 1e3, 4) for span in longest]
    columns["busy"] = [round(span["busy"] / 1e3, 4) for span in longest]
    for name in ("name", "what", "count", "nbytes"):
        columns[name] = [span[name] for span in longest]
    return columns, sum(span["count"] for span in drawn) - sum(span["count"] for span in longest)


def is_phase(span: dict[str, Any], training: str) -> bool:
    return span["name"] in PHASES_OF_A_TRACE and span["thread"] == training


def clipped(spans: list[dict[str, Any]], window: tuple[float, float, str]) -> list[dict[str, Any]]:
    begin, end, _ = window
    inside = [span for span in spans if span["begin"] < end and span["end"] > begin]
    return [span | {"begin": max(begin, span["begin"]), "end": min(end, span["end"])} for span in inside]


def timeline(trace: Trace, window: tuple[float, float, str]) -> tuple[list[dict[str, Any]], int]:
    training = trace.training_thread()
    phases = [span for span in trace.spans if is_phase(span, training)]
    groups = {"training thread": phases}
    for span in trace.spans:
        if span["name"] in PARTS:
            label = "engine" if span["thread"] == training else trace.thread_names.get(span["thread"], "other thread")
            groups.setdefault(label, []).append(span)
    rows, left_out = [], 0
    for label, spans in (groups | trace.calls).items():
        lanes, without_lane = in_lanes(clipped(spans, window), MOST_LANES)
        left_out += without_lane
        for count, lane in enumerate(lanes):
            one, too_many = row(label if count == 0 else f"{label} {count + 1}", lane, window)
            rows.append(one)
            left_out += too_many
    return rows, left_out


def memory_over(trace: Trace, window: tuple[float, float, str]) -> dict[str, Any]:
    """Of every kind that is ever there, at each change within the window."""
    begin, end, _ = window
    before = [kinds for at, kinds in trace.kinds if at <= begin]
    samples = [(begin, before[-1])] if before else []
    samples += [(at, kinds) for at, kinds in trace.kinds if begin < at <= end]
    if not samples:
        return {"ms": [], "kinds": {}}
    totals = array.array("d", (sum(kinds.values()) for _, kinds in samples))
    chosen = [samples[i] for i in thinned(totals)]
    chosen.append((end, chosen[-1][1]))
    names = in_order({kind for _, kinds in chosen for kind, value in kinds.items() if value}, KINDS)
    return {
        "ms": [round((at - begin) / 1e3, 4) for at, _ in chosen],
        "kinds": {name: [kinds.get(name, 0) for _, kinds in chosen] for name in names},
        "changes": len(samples),
    }


def resident_over(trace: Trace, window: tuple[float, float, str]) -> dict[str, list[float]]:
    begin, end, _ = window
    inside = [(at, value) for at, value in trace.resident if begin <= at <= end]
    chosen = [inside[i] for i in thinned(array.array("d", (value for _, value in inside)))]
    return {"ms": [round((at - begin) / 1e3, 4) for at, _ in chosen], "nbytes": [value for _, value in chosen]}


def drawn_trace(rank: int, trace: Trace, window: tuple[float, float, str]) -> dict[str, Any]:
    begin, end, name = window
    rows, left_out = timeline(trace, window)
    training = trace.training_thread()
    return {
        "rank": rank,
        "step": name,
        "ms": round((end - begin) / 1e3, 4),
        "begins": [
            {"name": span["name"], "ms": round((span["begin"] - begin) / 1e3, 4)}
            for span in trace.spans
            if is_phase(span, training) and begin <= span["begin"] < end and span["what"] != "micro-batch"
        ],
        "memory": memory_over(trace, window),
        "resident": resident_over(trace, window),
        "rows": rows,
        "spans_not_drawn": left_out,
        "events_left_out": trace.left_out,
    }


def traces_of(run: Run) -> tuple[list[dict[str, Any]], int]:
    """And how many ranks have a trace that is not read."""
    files: dict[int, Path] = {}
    for path in (run.folder / "trace").glob("rank*.json"):
        if path.stem[4:].isdecimal():
            files[int(path.stem[4:])] = path
    ranks = sorted(files)[:MOST_RANKS]
    if not ranks:
        return [], 0
    traces = {rank: Trace(files[rank]) for rank in ranks}
    windows = windows_of(traces)
    return [drawn_trace(rank, traces[rank], windows[rank]) for rank in ranks], len(files) - len(ranks)


# ---- The data of the page


def in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Known ones first, in their order."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))


def result_in_words(run: Run) -> tuple[str, str]:
    """And "good", "bad" or "open"."""
    steps, wanted = run.steps(), number_at(run.plan, "steps")
    of_steps = f"{steps:,} of {wanted:,.0f} steps" if wanted is not None else f"{steps:,} steps"
    summary = run.summary
    if summary is None:
        return f"still running, or killed: {of_steps}, no summary yet", "open"
    if not run.summary_is_of_now():
        return f"still running, or killed: {of_steps}, the summary is of an earlier start", "open"
    problem = f"; the last checkpoint: {text_at(summary, 'save_problem')}" if text_at(summary, "save_problem") else ""
    if summary.get("diverged") is True:
        return f"diverged at step {of_steps.removesuffix(' steps')}{problem}", "bad"
    by = text_at(summary, "stopped_by")
    if by:
        by = {"max_minutes": "--max-minutes", "patience": "--patience"}.get(by, by)
        return f"stopped by {by} after {of_steps}{problem}", "open"
    return f"finished: {of_steps}{problem}", "bad" if problem else "good"


def model_in_words(run: Run) -> str:
    plan = run.plan
    numel = number_at(plan, "parameters_numel")
    words = [text_at(plan, "preset") or "model"] + ([f"{human_count(numel)} parameters"] if numel else [])
    layers, width, seq = (number_at(plan, key) for key in ("layers", "dim", "seq"))
    if layers and width:
        words.append(f"{layers:.0f} layers of width {width:.0f}")
    if seq:
        words.append(f"sequences of {seq:.0f}")
    return ", ".join(words)


def precision_of(config: dict[str, Any] | None) -> str:
    if config is None:
        return ""
    for name in ("bf16", "fp16"):
        if isinstance(config.get(name), dict) and config[name].get("enabled") is True:
            return name
    return "fp32"


def ranks_in_words(run: Run) -> str:
    ranks, threads = number_at(run.summary, "ranks") or number_at(run.plan, "ranks"), number_at(
        run.summary, "threads_per_rank"
    )
    if ranks is None:
        return "–"
    return f"{ranks:.0f}" + (f" × {threads:.0f} thread{'' if threads == 1 else 's'}" if threads else "")


def last_finite(values: Iterable[float]) -> float | None:
    found = None
    for value in values:
        found = value if value == value else found
    return found


def results_of(run: Run) -> dict[str, float | None]:
    """From the summary, or from the metrics of a run that has none."""
    metrics, summary = run.metrics, run.summary if run.summary_is_of_now() else None
    validated = [one for one in metrics.validations if one["y"] == one["y"]]
    seconds, tokens = last_finite(metrics.seconds), last_finite(metrics.tokens)
    return {
        "val_loss": validated[-1]["y"] if validated else None,
        "val_loss_step": validated[-1]["step"] if validated else None,
        "val_loss_at_start": validated[0]["y"] if validated and validated[0]["step"] == 0 else None,
        "val_bits_per_byte": no_nan(validated[-1]["bits"]) if validated else None,
        "train_loss": (
            number_at(summary, "train_loss")
            if summary
            else last_finite(averaged(metrics.columns["loss"], SHORTEST_AVERAGE))
        ),
        "tokens": tokens,
        "tokens_per_s": (
            number_at(summary, "tokens_per_s") if summary else tokens / seconds if tokens and seconds else None
        ),
        "training_seconds": seconds,
        "total_seconds": number_at(summary, "total_seconds"),
        "host_pss_nbytes": number_at(summary, "memory", "host_pss_nbytes"),
    }


def facts_of(run: Run) -> dict[str, str]:
    results, unit = results_of(run), run.loss_unit().replace("nats per", "nats a")
    stage = number_at(run.summary, "stage")
    stage = number_at(run.config, "zero_optimization", "stage") if stage is None else stage
    before = or_dash(results["val_loss_at_start"], lambda v: f", {v:.3f} before step 1")
    val_loss = or_dash(results["val_loss"], lambda v: f"{v:.4f} {unit}" + before.replace("–", ""))
    return {
        "Result": result_in_words(run)[0],
        "Model": model_in_words(run),
        "Ranks": ranks_in_words(run),
        "ZeRO": or_dash(stage, lambda v: f"stage {v:.0f}") + (f", {precision_of(run.config)}" if run.config else ""),
        "Validation loss": val_loss,
        "Bits per byte": or_dash(results["val_bits_per_byte"], lambda v: f"{v:.3f}"),
        "Training loss": or_dash(results["train_loss"], lambda v: f"{v:.4f} {unit}"),
        "Trained on": or_dash(results["tokens"], lambda v: f"{human_count(v)} tokens"),
        "Speed": or_dash(results["tokens_per_s"], lambda v: f"{v:,.0f} tokens/s"),
        "Time": or_dash(results["training_seconds"], duration)
        + or_dash(results["total_seconds"], lambda v: f", all in {duration(v)}").replace("–", ""),
        "Memory": or_dash(results["host_pss_nbytes"], lambda v: f"{human_nbytes(v)}, all ranks"),
        "Started": started_at(run),
    }


def started_at(run: Run) -> str:
    text = text_at(run.environment, "run", "started_at")
    return text.replace("T", " ").replace("Z", " UTC") or "–"


def memory_of(run: Run) -> dict[str, Any] | None:
    ranks = run.summary.get("memory", {}) if run.summary else {}
    by_rank = ranks.get("by_rank") if isinstance(ranks, dict) else None
    if not isinstance(by_rank, list) or not by_rank:
        return None
    found: list[dict[str, Any]] = []
    for rank, kinds in enumerate(by_rank):
        kinds = kinds if isinstance(kinds, dict) else {}
        peaks = {kind: number_at(kinds, kind, "peak_nbytes") or 0 for kind in in_order(kinds, KINDS)}
        ends = {kind: number_at(kinds, kind, "current_nbytes") or 0 for kind in peaks}
        found.append({"rank": rank, "peak": peaks, "end": ends})
    fullest = sorted(found, key=lambda one: -sum(one["peak"].values()))[:MOST_RANKS]
    return {
        "ranks": len(found),
        "by_rank": sorted(fullest, key=lambda one: one["rank"]),
        "ddp_states_nbytes": number_at(ranks, "ddp_states_nbytes_per_rank"),
        "host_pss_nbytes": number_at(ranks, "host_pss_nbytes"),
    }


def flat(found: Any, prefix: str = "") -> dict[str, Any]:
    """Keys with dots; empty objects and lists are values."""
    if isinstance(found, dict) and found:
        return {key: value for name in found for key, value in flat(found[name], f"{prefix}{name}.").items()}
    return {prefix[:-1]: found}


def settings_of(run: Run) -> dict[str, Any]:
    """What the run was told: options of `zero train`, then the keys of the configuration."""
    elsewhere = {"config", "model", "run_folder", "command_line", "tensorboard_folder", "corpus_hash", "corpus_folder"}
    of_plan = {key + OF_OPTIONS: value for key, value in run.plan.items() if key not in elsewhere}
    return of_plan | (flat(run.config) if run.config else {})


def environment_of(run: Run) -> dict[str, Any]:
    if run.environment is None:
        return {}
    found = flat({key: value for key, value in run.environment.items() if key != "earlier"})
    earlier = run.environment.get("earlier")
    for count, start in enumerate(earlier if isinstance(earlier, list) else [], 1):
        for key, value in flat(start).items():
            if key.rpartition(".")[2] in ("command_line", "started_at", "ranks"):
                found[f"earlier start {count}: {key.rpartition('.')[2]}"] = value
    return {
        key: human_nbytes(value) if key.endswith("_nbytes") and number_at(found, key) else value
        for key, value in found.items()
        if value not in ({}, [])
    }


def data_of_run(run: Run, place: int, average: int) -> dict[str, Any]:
    words, mood = result_in_words(run)
    traces, not_read = traces_of(run)
    times = run.summary.get("ms_per_step") if run.summary else None
    baselines = [one["baseline"] for one in run.metrics.validations if one["baseline"] == one["baseline"]]
    is_of_bytes = run.loss_unit() == "nats per byte"
    return {
        "name": run.name,
        "folder": of_path(run.folder),
        "colour": COLOURS[place % len(COLOURS)],
        "dash": DASHES[place // len(COLOURS) % len(DASHES)],
        "result": words,
        "mood": mood,
        "facts": facts_of(run),
        "loss_unit": run.loss_unit(),
        "unigram_entropy": baselines[-1] if baselines and is_of_bytes else None,
        "clipping": number_at(run.config, "gradient_clipping") or None,
        "steps": len(run.metrics.step),
        "not_numbers": run.metrics.not_numbers(),
        "skipped_steps": len(run.metrics.skipped),
        "cut_off": run.metrics.cut_off,
        "has_summary": run.summary is not None,
        "summary_is_of_now": run.summary_is_of_now(),
        "curves": curves_of(run.metrics, average),
        "ms_per_step": {name: number_at(times, name) for name in ("total", *PHASES, *PARTS)} if times else None,
        "memory": memory_of(run),
        "received_per_step_in_model_sizes": number_at(run.summary, "received_per_step_in_model_sizes"),
        "ranks": number_at(run.summary, "ranks") or number_at(run.plan, "ranks"),
        "parameters_numel": number_at(run.plan, "parameters_numel"),
        "traces": traces,
        "traces_not_read": not_read,
        "has_config": run.config is not None,
        "has_environment": run.environment is not None,
        "settings": settings_of(run),
        "environment": environment_of(run),
    }


def title_of(runs: list[Run]) -> str:
    if len(runs) > MOST_SIDE_BY_SIDE:
        return f"{len(runs)} training runs"
    return "Training " + ("run " if len(runs) == 1 else "runs ") + ", ".join(run.name for run in runs)


def data_of(runs: list[Run], title: str) -> dict[str, Any]:
    average = max(SHORTEST_AVERAGE, max(len(run.metrics.step) for run in runs) // 100)
    return {
        "title": title or title_of(runs),
        "made_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "average_steps": average,
        "most_points": MOST_POINTS,
        "colours": {"phases": PHASES, "parts": PARTS, "kinds": KINDS, "calls": CALLS},
        "runs": [data_of_run(run, place, average) for place, run in enumerate(runs)],
    }


# ---- The page


def swatch(run: dict[str, Any]) -> str:
    return f'<span class="swatch" style="background:{run["colour"]}"></span>'


def run_name(run: dict[str, Any]) -> str:
    return f'{swatch(run)}<span class="name">{escaped(run["name"])}</span>'


def table(head: list[str], rows: list[list[str]], numbers_from: int = 1, kind: str = "") -> str:
    """Of HTML. Columns from `numbers_from` on are numbers."""

    def cells(row: list[str], tag: str) -> str:
        return "".join(
            f'<{tag}{" class=number" if i >= numbers_from else ""}>{cell}</{tag}>' for i, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>"
    return f'<div class="wide"><table class="{kind}">{top}<tbody>{body}</tbody></table></div>'


def note(text: str) -> str:
    return f'<p class="note">{text}</p>'


def missing(runs: list[dict[str, Any]], lack: list[dict[str, Any]], what: str, how: str) -> str:
    """`what` some runs have not, and how to get it."""
    if not lack:
        return ""
    who = "" if len(runs) == 1 else ", ".join(escaped(run["name"]) for run in lack) + ": "
    return f'<p class="missing">{who}{what}. {how}</p>'


def chart(name: str, height: int) -> str:
    return f'<div class="chart" id="{name}" style="height:{height}px"></div>'


def headline(data: dict[str, Any]) -> str:
    runs = data["runs"]
    if len(runs) == 1:
        run = runs[0]
        parts = []
        for label, value in run["facts"].items():
            mood = f' class="{run["mood"]}"' if label == "Result" else ""
            parts.append(f"<div><dt>{label}</dt><dd{mood}>{escaped(value)}</dd></div>")
        return f'<dl class="facts">{"".join(parts)}</dl>' + note(f"Folder: <code>{escaped(run['folder'])}</code>")
    labels = list(runs[0]["facts"])
    rows = [
        [label]
        + [
            f'<span class="{run["mood"] if label == "Result" else ""}">{escaped(run["facts"][label])}</span>'
            for run in runs
        ]
        for label in labels
    ]
    if len(runs) > MOST_SIDE_BY_SIDE:
        head, *rest = zip(["", *map(run_name, runs)], *rows)
        return table([*head], [[*row] for row in rest], numbers_from=len(head), kind="below-each-other")
    rows.append(["Folder"] + [f"<code>{escaped(run['folder'])}</code>" for run in runs])
    return table([""] + [run_name(run) for run in runs], rows, numbers_from=len(runs) + 1, kind="side-by-side")


def controls(runs: list[dict[str, Any]]) -> str:
    chips = "".join(
        f'<button class="chip" type="button" data-run="{i}" aria-pressed="true">{run_name(run)}</button>'
        for i, run in enumerate(runs)
    )
    axes = "".join(
        f'<label><input type="radio" name="axis" value="{value}"{" checked" if value == "step" else ""}>{label}</label>'
        for value, label in (("step", "steps"), ("tokens", "tokens"), ("seconds", "seconds of training"))
    )
    logarithm = '<label><input type="checkbox" id="log-axis">logarithmic</label>'
    shown = f'<div class="chips">{chips}</div>' if len(runs) > 1 else ""
    return (
        f'<div class="controls">{shown}<fieldset class="screen"><span>x axis</span>{axes}{logarithm}</fieldset></div>'
    )


def words_on_curves(data: dict[str, Any]) -> list[str]:
    words = []
    for run in data["runs"]:
        who = "" if len(data["runs"]) == 1 else f"{escaped(run['name'])}: "
        if run["not_numbers"]:
            count = counted(run["not_numbers"], "step has", "steps have")
            words.append(f"{who}{count} a loss that is not a finite number: gaps.")
        if run["skipped_steps"]:
            count = counted(run["skipped_steps"], "step was", "steps were")
            words.append(f"{who}{count} skipped: the gradient was not finite (crosses).")
        if run["cut_off"]:
            words.append(f"{who}the last line of metrics.jsonl was cut off, and is left out.")
        if run["steps"] > data["most_points"]:
            words.append(
                f"{who}{run['steps']:,} steps are thinned out to at most {data['most_points']:,} points a curve: "
                "the first, the last, and the smallest and the largest of equal pieces."
            )
    return words


def loss_section(data: dict[str, Any]) -> str:
    runs = data["runs"]
    empty = [run for run in runs if not run["steps"]]
    units = " / ".join(sorted({run["loss_unit"] for run in runs}))
    has_skipped = any(run["skipped_steps"] for run in runs)
    legend = f"Loss in {units}. Faint: each step; line: average over about {data['average_steps']:,} steps; " + (
        "circles: validation" + ("; crosses: skipped steps." if has_skipped else ".")
    )
    if any(run["unigram_entropy"] is not None for run in runs):
        legend += " Dotted: the unigram entropy, the loss of knowing just how often each byte occurs."
    lack = missing(runs, empty, "no step is recorded yet", "metrics.jsonl gets a line at the end of each.")
    drawn = chart("loss", 400) if any(run["steps"] or run["curves"]["val_loss"]["y"] for run in runs) else ""
    return controls(runs) + drawn + note(legend) + "".join(map(note, words_on_curves(data))) + lack


def course_section(data: dict[str, Any]) -> str:
    if not any(run["steps"] for run in data["runs"]):
        return ""
    charts = "".join(chart(name, 260) for name in ("tokens_per_s", "grad_norm", "lr"))
    clips = any(run["clipping"] for run in data["runs"])
    return f'<div class="three">{charts}</div>' + note(
        f"Tokens per second: faint each step, the line an average over about {data['average_steps']:,} steps."
        + (" Gradient norm: before clipping; dotted: where clipping begins." if clips else "")
    )


def part_name(name: str) -> str:
    return name.replace("_", " ")


def time_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["ms_per_step"]]
    lack = [run for run in data["runs"] if not run["ms_per_step"]]
    without = missing(data["runs"], lack, "no times by part", "They are in summary.json, which is written at the end.")
    if not runs:
        return without
    rows = []
    for run in runs:
        total = run["ms_per_step"]["total"]
        row = [run_name(run)]
        for name in ("total", *PHASES, *PARTS):
            value = run["ms_per_step"][name]
            share = f"<small>{100 * value / total:.1f} %</small>" if total and value is not None else ""
            row.append(or_dash(value, milliseconds) + share)
        rows.append(row)
    height = 142 + 34 * len(runs)
    head = ["ms per step", *map(part_name, ("total", *PHASES, *PARTS))]
    words = (
        "Milliseconds of one optimizer step, the mean over ranks and steps. Right: what the engine did within forward, "
        "backward and step: copies of gradients, their reduction, waiting for parameters (gather) and for other ranks "
        "(wait), the norm, the update, publishing."
    )
    return (
        f'<div class="two">{chart("phases", height)}{chart("parts", height)}</div>'
        + table(head, rows)
        + note(words)
        + without
    )


def memory_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["memory"]]
    lack = [run for run in data["runs"] if not run["memory"]]
    without = missing(data["runs"], lack, "no memory by kind", "It is in summary.json, which is written at the end.")
    if not runs:
        return without
    bars = sum(len(run["memory"]["by_rank"]) for run in runs)
    found = {kind for run in runs for one in run["memory"]["by_rank"] for kind, value in one["peak"].items() if value}
    kinds = in_order(found, KINDS)
    rows = []
    for run in runs:
        by_rank = run["memory"]["by_rank"]
        for label, which in (("largest peak", "peak"), ("at the end", "end")):
            values = [max(one[which].get(kind, 0) for one in by_rank) for kind in kinds]
            rest = (
                [run["memory"]["ddp_states_nbytes"], run["memory"]["host_pss_nbytes"]] if which == "end" else ["", ""]
            )
            row = [run_name(run) if which == "peak" else "", label, *(human_nbytes(v) if v else "–" for v in values)]
            rows.append(row + [v if isinstance(v, str) else or_dash(v, human_nbytes) for v in rest])
    head = ["", "of any rank", *kinds, "states with DDP", "PSS, all ranks"]
    words = (
        "Peaks of each kind on each rank. They need not be at the same time: a bar is as long as the memory could have "
        "been at most. PSS is all memory of the ranks on the host at the end, libtorch's code included."
    )
    for run in runs:
        if run["memory"]["ranks"] > len(run["memory"]["by_rank"]):
            words += f" {escaped(run['name'])}: the {MOST_RANKS} fullest of {run['memory']['ranks']} ranks are drawn."
    return chart("memory", 100 + 26 * bars) + table(head, rows, numbers_from=2) + note(words) + without


def trace_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["traces"]]
    lack = [run for run in data["runs"] if not run["traces"]]
    without = missing(data["runs"], lack, "no trace of a step", "For memory and calls over a step: train with --trace.")
    if not runs:
        return without
    options = "".join(
        f'<option value="{i} {k}">{escaped(run["name"])}, rank {trace["rank"]}</option>'
        for i, run in enumerate(data["runs"])
        for k, trace in enumerate(run["traces"])
    )
    choice = f'<div class="controls"><label>Rank <select id="traced-rank">{options}</select></label></div>'
    words = (
        "One traced step. Upper chart: memory by kind; upright lines: where forward, backward and step begin. Lower "
        "chart: what the training thread did, and calls on their way; paler: several, with pauses. Drag to zoom in "
        "on both, double-click to zoom out. All of it: open "
        "<code>trace/rank0.json</code> in Perfetto (ui.perfetto.dev)."
    )
    for run in runs:
        if run["traces_not_read"]:
            words += f" {escaped(run['name'])}: traces of {run['traces_not_read']} more ranks are not drawn."
    charts = chart("traced-memory", 330) + chart("timeline", 300)
    return choice + charts + '<p class="note" id="about-trace"></p>' + note(words) + without


def traffic_section(data: dict[str, Any]) -> str:
    known = "received_per_step_in_model_sizes"
    runs = [run for run in data["runs"] if run[known] is not None]
    lack = [run for run in data["runs"] if run[known] is None]
    without = missing(data["runs"], lack, "no traffic", "It is in summary.json, which is written at the end.")
    if not runs:
        return without
    largest = max(run[known] for run in runs) or 1
    rows = []
    for run in runs:
        ranks, numel = run["ranks"], run["parameters_numel"]
        elements = run[known] * numel * (ranks - 1) / ranks if ranks and numel else None
        bar = f'<div class="bar" style="width:{100 * run[known] / largest:.1f}%;background:{run["colour"]}"></div>'
        rows.append([run_name(run), bar, f"{run[known]:.2f}", or_dash(elements, human_count)])
    head = ["", "", "model sizes", "elements, about"]
    words = (
        "Received per step by each rank, in units of P (N-1)/N elements (P parameters, N ranks). With one micro-batch "
        "theory says 2 at stages 0 to 2, 3 at stage 3 with the copying store, 1 with the node-shared store; each "
        "further micro-batch adds a reduction. One rank receives nothing."
    )
    return table(head, rows, numbers_from=2, kind="traffic") + note(words) + without


def as_text(value: Any) -> str:
    """Of a setting, as JSON has it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def settings_table(runs: list[dict[str, Any]], which: str, keys: list[str], marks: bool) -> str:
    rows = []
    for key in keys:
        values = [as_text(run[which][key]) if key in run[which] else "–" for run in runs]
        tag = "mark" if marks and len(set(values)) > 1 else "span"
        rows.append([escaped(key)] + [f"<{tag}>{escaped(value)}</{tag}>" for value in values])
    return table(["", *map(run_name, runs)], rows, numbers_from=len(runs) + 1, kind="settings")


def settings_list(run: dict[str, Any], keys: list[str]) -> str:
    pairs = "".join(
        f"<div><dt>{escaped(key.removesuffix(OF_OPTIONS))}</dt><dd>{escaped(as_text(run['settings'][key]))}</dd></div>"
        for key in keys
    )
    return f'<dl class="columns">{pairs}</dl>'


def keys_of(runs: list[dict[str, Any]], which: str) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run[which]))


def settings_section(data: dict[str, Any]) -> str:
    runs = data["runs"]
    keys = keys_of(runs, "settings")
    lack = [run for run in runs if not run["has_config"]]
    without = missing(runs, lack, "no config.json", "Below are only the options of zero train.")
    if len(runs) == 1:
        told = [key for key in keys if key.endswith(OF_OPTIONS)]
        resolved = [key for key in keys if not key.endswith(OF_OPTIONS)]
        return (
            without
            + "<h3>Options of zero train</h3>"
            + settings_list(runs[0], told)
            + ("<h3>config.json, every key resolved</h3>" + settings_list(runs[0], resolved) if resolved else "")
        )
    differing = [
        key
        for key in keys
        if len({as_text(run["settings"].get(key, ...)) if key in run["settings"] else "–" for run in runs}) > 1
    ]
    same = f"<p>{len(keys) - len(differing)} of {len(keys)} keys are the same in all runs.</p>"
    first = settings_table(runs, "settings", differing, marks=False) if differing else ""
    whole = settings_table(runs, "settings", keys, marks=True)
    return without + same + first + f"<details><summary>All {len(keys)} keys</summary>{whole}</details>"


def environment_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["has_environment"]]
    lack = [run for run in data["runs"] if not run["has_environment"]]
    without = missing(data["runs"], lack, "no environment.json", "zero train writes it when it starts.")
    if not runs:
        return without
    return settings_table(runs, "environment", keys_of(runs, "environment"), marks=len(runs) > 1) + without


SECTIONS: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
    ("loss-section", "Loss", loss_section),
    ("course-section", "Throughput, gradient norm, learning rate", course_section),
    ("time-section", "Time of a step", time_section),
    ("memory-section", "Memory", memory_section),
    ("trace-section", "Inside a step", trace_section),
    ("traffic-section", "Traffic", traffic_section),
    ("settings-section", "Configuration", settings_section),
    ("environment-section", "Environment", environment_section),
]


def in_script(data: dict[str, Any]) -> str:
    """JSON that ends no element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_of(data: dict[str, Any], plotly: str) -> str:
    contents = [(name, title, write(data)) for name, title, write in SECTIONS]
    contents = [one for one in contents if one[2]]
    links = "".join(f'<a href="#{name}">{title.split(",")[0]}</a>' for name, title, _ in contents)
    sections = "".join(f'<section id="{name}"><h2>{title}</h2>{body}</section>' for name, title, body in contents)
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(data["title"])}</title>
<style>{STYLE}</style>
</head>
<body>
<p id="problem" hidden></p>
<header>
<h1>{escaped(data["title"])}</h1>
<nav class="screen">{links}</nav>
</header>
<main>
<noscript><p class="missing">The charts need JavaScript; the tables do not.</p></noscript>
<section id="headline">{headline(data)}</section>
{sections}
</main>
<footer>Made with zero report on {data["made_at"]}. Bytes are decimal: 1 MB is 10<sup>6</sup> bytes.</footer>
<script type="application/json" id="zerotorch-report">{in_script(data)}</script>
<script>{WATCH}</script>
<script id="plotly">{plotly}</script>
<script>{DRAW}</script>
</body>
</html>
"""


def write_whole(path: Path, text: str) -> int:
    """Through a file beside it, so that nobody sees half a page. Returns its bytes."""
    if path.is_dir():
        raise Refused(f"--out {of_path(path)}: is a folder; name a file")
    content = text.encode(errors="replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as out:
            out.write(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Refused(f"--out {of_path(path)}: cannot be written: {error.strerror}") from None
    return len(content)


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise Refused("this needs the package plotly: pip install plotly") from None
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="report_runs", description="Draws runs of `zero train` as one page of HTML.")
    parser.add_argument("--out", type=Path, required=True, help="the page; replaced if it is there")
    parser.add_argument("--title", default="", help="of the page (default: the names of the runs)")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder of zero train")
    options = parser.parse_args(arguments)
    try:
        plotly = plotly_script()
        runs = [Run(folder) for folder in options.runs]
        tell_apart(runs)
        nbytes = write_whole(options.out, page_of(data_of(runs, options.title), plotly))
    except (Refused, OSError) as error:
        print(f"report_runs: error: {error}", file=sys.stderr)
        return 2
    print(f"{of_path(options.out)}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {human_nbytes(nbytes)}")
    return 0


STYLE = """
:root { --line: #dde1e6; --faint: #5b6470; --ink: #1c2127; }
* { box-sizing: border-box; }
html { scroll-padding-top: 3rem; }
body { margin: 0; background: #fff; color: var(--ink); font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans",
  "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums; }
header, main, footer { max-width: 1200px; margin: 0 auto; padding: 0 24px; }
h1 { font-size: 24px; font-weight: 600; margin: 22px 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 17px; font-weight: 600; margin: 0 0 10px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 6px 0 10px; border-bottom: 1px solid var(--line); }
nav a { color: #1f6fb4; text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { padding: 18px 0 8px; }
section + section { border-top: 1px solid var(--line); }
footer { color: var(--faint); font-size: 12px; padding-top: 8px; padding-bottom: 24px; }
h3 { font-size: 13px; font-weight: 600; margin: 12px 0 4px; }
code { font: 12px/1.4 ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; overflow-wrap: anywhere; }
.note, .missing { color: var(--faint); font-size: 12.5px; max-width: 100ch; margin: 6px 0; overflow-wrap: anywhere; }
.missing { border-left: 3px solid var(--line); padding-left: 10px; }
#problem { margin: 0; padding: 10px 24px; background: #b3261e; color: #fff; }
.good { color: #1f7a4a; } .bad { color: #b3261e; font-weight: 600; } .open { color: #9a5b00; }
.facts { display: grid; grid-template-columns: repeat(4, 1fr); gap: 1px; margin: 0; border: 1px solid var(--line);
  background: var(--line); }
.facts div { background: #fff; padding: 9px 12px; }
.facts dt { color: var(--faint); font-size: 12px; }
.facts dd { margin: 1px 0 0; font-size: 15px; overflow-wrap: anywhere; }
.chart { width: 100%; min-width: 0; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 20px; }
.three { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 20px; }
.two > * { min-width: 0; }
@media screen and (max-width: 900px) {
  .two, .three { grid-template-columns: minmax(0, 1fr); }
  .facts { grid-template-columns: 1fr 1fr; }
}
.controls { display: flex; flex-wrap: wrap; gap: 8px 24px; align-items: center; justify-content: space-between; }
.controls fieldset { border: 0; margin: 0 0 0 auto; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 14px;
  color: var(--faint); }
.controls label { cursor: pointer; }
.controls input { margin: 0 5px 0 0; vertical-align: -1px; }
.controls select { font: inherit; padding: 2px 6px; max-width: 60ch; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; }
.chip { font: inherit; color: inherit; border: 1px solid var(--line); border-radius: 14px; background: #fff;
  padding: 2px 11px; cursor: pointer; text-align: left; }
.chip[aria-pressed=false] { opacity: .4; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.name { overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 6px 0; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
thead th { border-bottom-color: #9aa3ad; vertical-align: bottom; }
th.number, td.number { text-align: right; padding: 4px 0 4px 12px; }
td.number { white-space: nowrap; }
td small { display: block; color: var(--faint); font-size: 11px; }
.settings td, .side-by-side td { overflow-wrap: anywhere; min-width: 12ch; }
.settings td:first-child, .side-by-side td:first-child { color: var(--faint); }
.settings td:first-child { min-width: 24ch; }
.side-by-side td:first-child { white-space: nowrap; }
.settings td + td { font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", "Liberation Mono", monospace; }
.below-each-other { font-size: 12px; }
.below-each-other td { min-width: 8ch; }
.below-each-other td:first-child { min-width: 20ch; }
.traffic { width: auto; min-width: 60%; }
.traffic td:nth-child(2) { width: 240px; }
.bar { height: 12px; margin-top: 4px; }
mark { background: #fff0c2; color: inherit; padding: 0 3px; }
.swatch, .bar, .facts, mark { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
details { margin: 10px 0; }
summary { cursor: pointer; color: #1f6fb4; }
.columns { columns: 3; column-gap: 28px; margin: 0; font-size: 12px; }
.columns div { break-inside: avoid; display: flex; gap: 10px; justify-content: space-between; padding: 2px 0;
  border-bottom: 1px solid #eceff2; }
.columns dt { color: var(--faint); overflow-wrap: anywhere; }
.columns dd { margin: 0; text-align: right; overflow-wrap: anywhere; max-width: 60%; }
@media screen and (max-width: 900px) { .columns { columns: 1; } }
@page { size: A4 landscape; margin: 9mm; }
@media print {
  body { zoom: .85; }
  .screen { display: none !important; }
  header, main, footer { padding: 0; margin: 0; width: 1180px; max-width: none; }
  .chart, tr, .facts, .two, .three { break-inside: avoid; }
  h2, h3, .controls { break-after: avoid; }
  .modebar { display: none !important; }
}
"""

# Says on the page what went wrong in its scripts.
WATCH = r"""
function tellProblem(text) {
  const place = document.getElementById("problem");
  place.hidden = false;
  place.textContent = "This page could not be drawn: " + text;
  document.title = "Error: " + text;
}
window.onerror = (message, source, line) => { tellProblem(message + " (line " + line + ")"); };
window.onunhandledrejection = (event) => { tellProblem(String(event.reason)); };
"""

DRAW = r"""
"use strict";
const report = JSON.parse(document.getElementById("zerotorch-report").textContent);
const SPARE = ["#7a8fa6", "#a67a7a", "#7aa67f", "#a69a7a", "#8a7aa6", "#7aa3a6", "#a67a9d", "#8f8f8f"];
const LARGE = ["loss", "traced-memory", "timeline"];  // charts with buttons; all zoom by dragging
const CONFIG = {
  responsive: true, displaylogo: false, doubleClick: "reset", showEditInChartStudio: false, plotlyServerURL: "",
  modeBarButtons: [["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
};
const AXIS = {
  gridcolor: "#e8ebef", linecolor: "#9aa3ad", zeroline: false, automargin: true, ticks: "outside", ticklen: 4,
  tickcolor: "#9aa3ad", exponentformat: "SI", minexponent: 3,
};
let drawn = 0;

// Plotly reads texts as a kind of HTML.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
const spaced = (name) => name.replaceAll("_", " ");
const numbered = (count) => count.toLocaleString("en");

function humanBytes(nbytes) {
  for (const [unit, size, digits] of [["GB", 1e9, 2], ["MB", 1e6, 1], ["kB", 1e3, 1]]) {
    if (nbytes >= size) return (nbytes / size).toFixed(digits) + " " + unit;
  }
  return nbytes.toFixed(0) + " bytes";
}

function unitFor(largest) {
  return largest >= 2e9 ? ["GB", 1e9] : largest >= 1e6 ? ["MB", 1e6] : ["kB", 1e3];
}

function translucent(colour, opacity) {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${opacity})`;
}

// Known names first, in the order of `known`.
function inOrder(names, known) {
  const order = Object.keys(known), place = (name) => (order.indexOf(name) + 1000) % 1000;
  return [...new Set(names)].sort((a, b) => place(a) - place(b));
}

function coloursOf(names, known) {
  const others = names.filter((name) => !known[name]);
  return (name) => known[name] || SPARE[others.indexOf(name) % SPARE.length];
}

function layoutOf(title, more) {
  const family = getComputedStyle(document.body).fontFamily;
  return {
    font: {family, size: 12, color: "#1c2127"},
    title: {text: title, font: {size: 13, weight: 600}, x: 0, xref: "paper", y: 0.985, yanchor: "top"},
    paper_bgcolor: "#fff", plot_bgcolor: "#fff", margin: {l: 56, r: 14, t: 34, b: 44},
    hoverlabel: {namelength: -1, font: {family, size: 12}, bgcolor: "#fff"}, ...more,
  };
}

async function draw(place, traces, layout) {
  const element = document.getElementById(place);
  await Plotly.react(element, traces, layout, {...CONFIG, displayModeBar: LARGE.includes(place)});
  if (!element.dataset.drawn) {
    element.dataset.drawn = "yes";
    document.documentElement.dataset.charts = String(++drawn);
  }
  return element;
}

// ---- Curves over the course of training

const AXES = {step: "step", tokens: "tokens", seconds: "seconds of training"};

function chosenAxis() {
  return document.querySelector("input[name=axis]:checked").value;
}

function shownRuns() {
  const chips = [...document.querySelectorAll(".chip[aria-pressed=false]")];
  const hidden = chips.map((chip) => Number(chip.dataset.run));
  return report.runs.filter((run, at) => !hidden.includes(at));
}

const named = (run, what) => report.runs.length > 1 ? `${short(run.name, 40)}, ${what}` : what;

// A line of one point shows nothing: then it has markers.
function line(run, curve, what, width, opacity = 1) {
  const {[chosenAxis()]: x, y} = run.curves[curve];
  return {
    type: "scatter", mode: y.length < 3 ? "lines+markers" : "lines", name: plain(named(run, what)), x, y, opacity,
    connectgaps: false, marker: {color: run.colour, size: 6}, line: {color: run.colour, dash: run.dash, width},
  };
}

function points(run, curve, what, marker) {
  const {[chosenAxis()]: x, y} = run.curves[curve];
  return {type: "scatter", mode: "markers", name: plain(named(run, what)), x, y,
          marker: {color: run.colour, size: 8, ...marker}};
}

function levels(runs, of) {
  const values = new Set(runs.map((run) => run[of]).filter((value) => value !== null));
  const dotted = {color: "#8b949e", width: 1.2, dash: "dot"};
  return [...values].map((value) => (
    {type: "line", xref: "paper", x0: 0, x1: 1, y0: value, y1: value, layer: "below", line: dotted}));
}

function courseLayout(title, more) {
  const type = document.getElementById("log-axis").checked ? "log" : "linear";
  const xaxis = {...AXIS, type, title: {text: AXES[chosenAxis()], standoff: 6}};
  return layoutOf(title, {showlegend: false, hovermode: "x unified", xaxis, yaxis: AXIS, ...more});
}

// Each curve is thinner than the one before, so that those that coincide can all be seen.
const behind = (runs, at) => Math.min(runs.length - 1 - at, 3);

async function drawLoss(runs) {
  const traces = runs.map((run) => line(run, "loss", "step", 1, 0.3));
  runs.forEach((run, at) => traces.push(line(run, "loss_average", "average", 2 + 1.5 * behind(runs, at))));
  runs.forEach((run, at) => {
    const size = 9 + 2.5 * behind(runs, at);
    traces.push(points(run, "skipped", "skipped", {symbol: "x-thin", line: {color: run.colour, width: 1.5}}));
    traces.push(points(run, "val_loss", "validation", {line: {color: "#fff", width: 1.2}, size}));
  });
  const units = [...new Set(runs.map((run) => run.loss_unit))].join(", ");
  await draw("loss", traces.filter((trace) => trace.y.length), courseLayout("", {
    yaxis: {...AXIS, title: {text: units, standoff: 8}}, shapes: levels(runs, "unigram_entropy"),
    margin: {l: 60, r: 14, t: 14, b: 44}}));
}

async function drawSpeed(runs) {
  const each = runs.map((run) => line(run, "tokens_per_s", "step", 1, 0.3));
  const average = runs.map((run) => line(run, "tokens_per_s_average", "average", 2));
  const yaxis = {...AXIS, rangemode: "tozero"};
  await draw("tokens_per_s", each.concat(average), courseLayout("Tokens per second", {yaxis}));
}

async function drawNorms(runs) {
  const norms = runs.flatMap((run) => run.curves.grad_norm.y).filter((value) => value !== null);
  const least = norms.reduce((a, b) => Math.min(a, b), Infinity), most = norms.reduce((a, b) => Math.max(a, b), 0);
  const isWide = least > 0 && most > 30 * least;
  const title = "Gradient norm" + (isWide ? ", logarithmic" : "");
  const yaxis = isWide ? {...AXIS, type: "log", dtick: 1} : AXIS;
  await draw("grad_norm", runs.map((run) => line(run, "grad_norm", "norm", 1.2)),
             courseLayout(title, {shapes: levels(runs, "clipping"), yaxis}));
}

async function drawRates(runs) {
  const traces = runs.map((run, at) => line(run, "lr", "learning rate", 1.6 + 1.5 * behind(runs, at)));
  const yaxis = {...AXIS, rangemode: "tozero", exponentformat: "e"};
  await draw("lr", traces, courseLayout("Learning rate", {yaxis}));
}

async function drawCourse() {
  const runs = shownRuns();
  if (document.getElementById("loss")) await drawLoss(runs);
  if (!document.getElementById("lr")) return;
  await drawSpeed(runs);
  await drawNorms(runs);
  await drawRates(runs);
}

// ---- Bars

function barLayout(title, labels, more) {
  const tickvals = labels.map((_, at) => at), ticktext = labels.map((text) => plain(short(text, 20)) + " ");
  const bottom = {orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom"};
  return layoutOf(title, {
    barmode: "stack", bargap: 0.35, hovermode: "closest", legend: {...bottom, traceorder: "normal"}, showlegend: true,
    xaxis: {...AXIS, automargin: false},
    yaxis: {...AXIS, autorange: "reversed", ticks: "", tickmode: "array", tickvals, ticktext}, ...more});
}

async function drawTimesOf(which, title) {
  const runs = report.runs.filter((run) => run.ms_per_step);
  if (!runs.length) return;
  const traces = Object.entries(report.colours[which]).map(([part, color]) => ({
    type: "bar", orientation: "h", name: spaced(part), marker: {color}, y: runs.map((_, at) => at),
    x: runs.map((run) => run.ms_per_step[part]), hovertemplate: `%{x:,.2f} ms<extra>${spaced(part)}</extra>`}));
  await draw(which, traces.filter((trace) => trace.x.some((value) => value > 0)),
             barLayout(title, runs.map((run) => run.name), {margin: {l: 56, r: 14, t: 34, b: 104}}));
}

function barsOfMemory() {
  const several = report.runs.length > 1;
  return report.runs.filter((run) => run.memory).flatMap((run) => run.memory.by_rank.map((one) => ({
    label: (several ? short(run.name, 12) + ", " : "") + "rank " + one.rank, peak: one.peak,
    sum: Object.values(one.peak).reduce((a, b) => a + b, 0)})));
}

async function drawMemory() {
  const bars = barsOfMemory(), known = report.colours.kinds;
  if (!bars.length) return;
  const [unit, size] = unitFor(Math.max(...bars.map((bar) => bar.sum)));
  const kinds = inOrder(bars.flatMap((bar) => Object.keys(bar.peak)), known), colourOf = coloursOf(kinds, known);
  const traces = kinds.map((kind) => ({
    type: "bar", orientation: "h", name: plain(kind), marker: {color: colourOf(kind)}, y: bars.map((_, at) => at),
    x: bars.map((bar) => (bar.peak[kind] || 0) / size), hovertemplate: "%{customdata}<extra>%{fullData.name}</extra>",
    customdata: bars.map((bar) => humanBytes(bar.peak[kind] || 0))}));
  const annotations = bars.map((bar, at) => ({x: bar.sum / size, y: at, text: humanBytes(bar.sum), showarrow: false,
                                              xanchor: "left", xshift: 5, font: {size: 11, color: "#5b6470"}}));
  await draw("memory", traces.filter((trace) => trace.x.some((value) => value > 0)),
             barLayout(`Peak by kind, ${unit}`, bars.map((bar) => bar.label),
                       {annotations, margin: {l: 56, r: 76, t: 34, b: 62}}));
}

// ---- A traced step

const TRACE_MARGIN = {l: 130, r: 200, t: 26, b: 40};
const RIGHT = {x: 1.01, y: 1};

function axisOfStep(trace) {
  return {...AXIS, range: [0, trace.ms], title: {text: "ms since the step began", standoff: 4}, automargin: false,
          exponentformat: "none", separatethousands: true};
}

function beginnings(trace) {
  const dotted = {color: "#4b5563", width: 1, dash: "dot"};
  const shapes = trace.begins.map((one) => (
    {type: "line", yref: "paper", y0: 0, y1: 1, x0: one.ms, x1: one.ms, line: dotted}));
  const labels = trace.begins.length > 10 ? [] : trace.begins.map((one) => (
    {x: one.ms, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", text: plain(one.name), showarrow: false,
     font: {size: 11, color: dotted.color}}));
  return {shapes, annotations: labels};
}

function curvesOfMemory(trace) {
  const ms = trace.memory.ms, known = report.colours.kinds;
  const kinds = Object.keys(trace.memory.kinds), colourOf = coloursOf(kinds, known);
  const totals = ms.map((_, at) => kinds.reduce((sum, kind) => sum + trace.memory.kinds[kind][at], 0));
  const largest = totals.reduce((a, b) => Math.max(a, b), 0);
  const resident = trace.resident.nbytes, mostResident = resident.reduce((a, b) => Math.max(a, b), 0);
  const [unit, size] = unitFor(Math.max(largest, ms.length ? 0 : mostResident));
  const curve = (name, x, nbytes, more) => ({
    type: "scatter", mode: "lines", name: plain(name), x, y: nbytes.map((value) => value / size),
    customdata: nbytes.map(humanBytes), hovertemplate: "%{customdata}", ...more});
  const curves = kinds.map((kind) => curve(kind, ms, trace.memory.kinds[kind], {
    stackgroup: "kinds", line: {shape: "hv", width: 0.5, color: colourOf(kind)},
    fillcolor: translucent(colourOf(kind), 0.85)}));
  if (ms.length) curves.push(curve("all kinds", ms, totals, {line: {shape: "hv", width: 1, color: "#1c2127"}}));
  if (resident.length) {
    const isFar = ms.length > 0 && mostResident > 2.5 * largest;  // it would leave no room for the kinds
    curves.push(curve("process (resident)", trace.resident.ms, resident, {
      line: {width: 1.5, color: "#1c2127", dash: "dash"}, visible: isFar ? "legendonly" : true}));
  }
  return [curves, unit];
}

function drawTracedMemory(trace) {
  const [curves, unit] = curvesOfMemory(trace);
  return draw("traced-memory", curves, layoutOf("", {
    ...beginnings(trace), margin: TRACE_MARGIN, hovermode: "x unified", xaxis: axisOfStep(trace), showlegend: true,
    yaxis: {...AXIS, rangemode: "tozero", title: {text: unit}, automargin: false},
    legend: {...RIGHT, traceorder: "reversed"}}));
}

function spansByName(trace) {
  const spans = new Map();
  trace.rows.forEach((row, at) => row.name.forEach((name, i) => {
    const columns = Object.keys(row).filter((column) => column !== "label");
    if (!spans.has(name)) spans.set(name, []);
    spans.get(name).push({at, ...Object.fromEntries(columns.map((column) => [column, row[column][i]]))});
  }));
  return spans;
}

function describeSpan(span) {
  const several = span.count > 1;
  const words = [several ? `${numbered(span.count)} × ${spaced(span.name)}` : `${spaced(span.name)} ${span.what}`];
  const busy = several ? `${span.busy.toFixed(3)} ms within ` : "";
  words.push(`${busy}${span.ms.toFixed(3)} ms, from ${span.begin.toFixed(3)} ms on`);
  if (span.nbytes !== null && span.nbytes >= 0) words.push(humanBytes(span.nbytes));
  return words.map(plain).join("<br>");
}

function barsOfSpans(name, color, spans, ms) {
  const opacity = spans.map((span) => span.count > 1 && span.ms > 0 ? 0.2 + 0.8 * span.busy / span.ms : 1);
  return {
    type: "bar", orientation: "h", name: plain(spaced(name)), marker: {color, opacity, line: {width: 0}}, width: 0.8,
    y: spans.map((span) => span.at), base: spans.map((span) => span.begin), x: spans.map((span) => span.ms),
    hovertemplate: "%{hovertext}<extra></extra>", hovertext: spans.map(describeSpan),
    text: spans.map((span) => span.ms > ms / 14 ? plain(spaced(name)) : ""), textposition: "inside", textangle: 0,
    insidetextanchor: "middle", insidetextfont: {size: 11, color: "#fff"}, constraintext: "none"};
}

function drawTimeline(trace) {
  const {phases, parts, calls} = report.colours;
  const known = {...phases, "forward and backward": "#93a7b8", ...parts, ...calls};
  const spans = spansByName(trace), names = inOrder(spans.keys(), known), colourOf = coloursOf(names, known);
  const labels = trace.rows.map((row) => plain(short(row.label, 22)) + " ");
  const height = Math.max(90 + 24 * labels.length, 76 + 21 * names.length);
  document.getElementById("timeline").style.height = `${height}px`;
  const bars = names.map((name) => barsOfSpans(name, colourOf(name), spans.get(name), trace.ms));
  return draw("timeline", bars, layoutOf("", {
    barmode: "overlay", margin: TRACE_MARGIN, hovermode: "closest", xaxis: axisOfStep(trace), showlegend: true,
    shapes: beginnings(trace).shapes, legend: {...RIGHT, traceorder: "normal"},
    yaxis: {...AXIS, range: [labels.length - 0.5, -0.5], ticks: "", showgrid: false, fixedrange: true,
            automargin: false, tickmode: "array", tickvals: labels.map((_, at) => at), ticktext: labels}}));
}

// Zooming one of them zooms the other.
function joinAxes(one, other) {
  one.on("plotly_relayout", (change) => {
    const ends = "xaxis.range[0]" in change ? [change["xaxis.range[0]"], change["xaxis.range[1]"]] : null;
    const range = change["xaxis.range"] || ends, now = other.layout.xaxis.range;
    if (range && (now[0] !== range[0] || now[1] !== range[1])) Plotly.relayout(other, {"xaxis.range": [...range]});
  });
}

function describeTrace(run, trace) {
  const words = [`${run.name}, rank ${trace.rank}${trace.step ? ", " + trace.step : ""}: ${trace.ms.toFixed(1)} ms.`];
  if (trace.spans_not_drawn) words.push(`${numbered(trace.spans_not_drawn)} spans have no room and are not drawn.`);
  if (trace.events_left_out) words.push(`${numbered(trace.events_left_out)} events are not in the trace: it was full.`);
  return words.join(" ");
}

async function drawTrace() {
  const choice = document.getElementById("traced-rank");
  if (!choice) return;
  const [run, rank] = choice.value.split(" ").map(Number), trace = report.runs[run].traces[rank];
  const memory = await drawTracedMemory(trace), timeline = await drawTimeline(trace);
  if (!choice.dataset.joined) {
    choice.dataset.joined = "yes";
    joinAxes(memory, timeline);
    joinAxes(timeline, memory);
  }
  document.getElementById("about-trace").textContent = describeTrace(report.runs[run], trace);
}

async function drawAll() {
  await drawCourse();
  await drawTimesOf("phases", "Phases of a step, ms");
  await drawTimesOf("parts", "Of these, the engine, ms");
  await drawMemory();
  await drawTrace();
  document.documentElement.dataset.done = "yes";
}

for (const input of document.querySelectorAll("input[name=axis], #log-axis")) {
  input.addEventListener("change", drawCourse);
}
for (const chip of document.querySelectorAll(".chip")) {
  chip.addEventListener("click", () => {
    chip.setAttribute("aria-pressed", chip.getAttribute("aria-pressed") === "true" ? "false" : "true");
    drawCourse();
  });
}
document.getElementById("traced-rank")?.addEventListener("change", drawTrace);
// A printed page is 1180 pixels wide (see STYLE) whatever the window is.
window.addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll(".chart[data-drawn]")) {
    const columns = one.parentElement.className === "two" ? 2 : one.parentElement.className === "three" ? 3 : 1;
    Plotly.relayout(one, {width: Math.floor((1180 - 20 * (columns - 1)) / columns)});
  }
});
window.addEventListener("afterprint", () => {
  for (const one of document.querySelectorAll(".chart[data-drawn]")) {
    Plotly.relayout(one, {width: null, autosize: true});
  }
});
drawAll();
"""


if __name__ == "__main__":
    sys.exit(main())
