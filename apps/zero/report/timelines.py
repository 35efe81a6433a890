"""One step of each traced rank, as it is drawn: rows of the timeline, and memory over the step."""

from __future__ import annotations

import array
from pathlib import Path
from typing import Any

from curves import thinned
from json_files import Refused
from limits import MOST_LANES, MOST_RANKS, MOST_SPANS
from palette import KINDS, PARTS, in_order
from traces import Trace, Window


def windows_of(traces: dict[int, Trace]) -> dict[int, Window]:
    """The last step that all ranks have whole; on one axis where their clocks agree."""
    steps = {rank: trace.steps() for rank, trace in traces.items()}
    last = min(map(len, steps.values())) - 1
    windows = {rank: steps[rank][last] if last >= 0 else trace.extent() for rank, trace in traces.items()}
    if max(one.begin for one in windows.values()) < min(one.end for one in windows.values()):
        first, final = min(one.begin for one in windows.values()), max(one.end for one in windows.values())
        windows = {rank: Window(first, final, one.step) for rank, one in windows.items()}
    return windows


# ---- Rows


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


def clipped(spans: list[dict[str, Any]], window: Window) -> list[dict[str, Any]]:
    inside = [span for span in spans if span["begin"] < window.end and span["end"] > window.begin]
    return [
        span | {"begin": max(window.begin, span["begin"]), "end": min(window.end, span["end"])} for span in inside
    ]


def row(label: str, spans: list[dict[str, Any]], window: Window) -> tuple[dict[str, Any], int]:
    """In milliseconds since the window began, and how many of its spans are left out."""
    drawn = merged(spans, (window.end - window.begin) / 1500)
    longest = sorted(drawn, key=lambda span: span["begin"] - span["end"])[:MOST_SPANS]
    longest.sort(key=lambda span: span["begin"])
    columns: dict[str, Any] = {"label": label}
    columns["begin"] = [round((span["begin"] - window.begin) / 1e3, 4) for span in longest]
    columns["ms"] = [round((span["end"] - span["begin"]) / 1e3, 4) for span in longest]
    columns["busy"] = [round(span["busy"] / 1e3, 4) for span in longest]
    for name in ("name", "what", "count", "nbytes"):
        columns[name] = [span[name] for span in longest]
    return columns, sum(span["count"] for span in drawn) - sum(span["count"] for span in longest)


def groups_of(trace: Trace) -> dict[str, list[dict[str, Any]]]:
    """Spans and calls by what they are drawn beside."""
    training = trace.training_thread()
    groups = {"training thread": trace.phases()}
    for span in trace.spans:
        if span["name"] in PARTS:
            label = "engine" if span["thread"] == training else trace.thread_names.get(span["thread"], "other thread")
            groups.setdefault(label, []).append(span)
    return groups | trace.calls


def timeline(trace: Trace, window: Window) -> tuple[list[dict[str, Any]], int]:
    """Rows, and how many spans are left out."""
    rows, left_out = [], 0
    for label, spans in groups_of(trace).items():
        lanes, without_lane = in_lanes(clipped(spans, window), MOST_LANES)
        left_out += without_lane
        for count, lane in enumerate(lanes):
            one, too_many = row(label if count == 0 else f"{label} {count + 1}", lane, window)
            rows.append(one)
            left_out += too_many
    return rows, left_out


# ---- Memory


def memory_over(trace: Trace, window: Window) -> dict[str, Any]:
    """Of every kind that is ever there, at each change within the window."""
    before = [kinds for at, kinds in trace.kinds if at <= window.begin]
    samples = [(window.begin, before[-1])] if before else []
    samples += [(at, kinds) for at, kinds in trace.kinds if window.begin < at <= window.end]
    if not samples:
        return {"ms": [], "kinds": {}}
    totals = array.array("d", (sum(kinds.values()) for _, kinds in samples))
    chosen = [samples[i] for i in thinned(totals)]
    chosen.append((window.end, chosen[-1][1]))
    names = in_order({kind for _, kinds in chosen for kind, value in kinds.items() if value}, KINDS)
    return {
        "ms": [round((at - window.begin) / 1e3, 4) for at, _ in chosen],
        "kinds": {name: [kinds.get(name, 0) for _, kinds in chosen] for name in names},
        "changes": len(samples),
    }


def resident_over(trace: Trace, window: Window) -> dict[str, list[float]]:
    inside = [(at, value) for at, value in trace.resident if window.begin <= at <= window.end]
    chosen = [inside[i] for i in thinned(array.array("d", (value for _, value in inside)))]
    return {"ms": [round((at - window.begin) / 1e3, 4) for at, _ in chosen], "nbytes": [value for _, value in chosen]}


# ---- Ranks


def beginnings(trace: Trace, window: Window) -> list[dict[str, Any]]:
    return [
        {"name": span["name"], "ms": round((span["begin"] - window.begin) / 1e3, 4)}
        for span in trace.phases()
        if window.begin <= span["begin"] < window.end and span["what"] != "micro-batch"
    ]


def drawn_trace(rank: int, trace: Trace, window: Window) -> dict[str, Any]:
    rows, left_out = timeline(trace, window)
    return {
        "rank": rank,
        "step": window.step,
        "ms": round((window.end - window.begin) / 1e3, 4),
        "begins": beginnings(trace, window),
        "memory": memory_over(trace, window),
        "resident": resident_over(trace, window),
        "rows": rows,
        "spans_not_drawn": left_out,
        "events_left_out": trace.left_out,
    }


def trace_files(run_folder: Path) -> dict[int, Path]:
    """By rank."""
    files = {}
    for path in (run_folder / "trace").glob("rank*.json"):
        if path.stem[4:].isdecimal():
            files[int(path.stem[4:])] = path
    return files


def traces_of(run_folder: Path) -> dict[str, Any]:
    """Of the first ranks; what is wrong with those that are damaged; and how many ranks have a trace beyond these."""
    files = trace_files(run_folder)
    traces, damaged = {}, []
    for rank in sorted(files)[:MOST_RANKS]:
        try:
            traces[rank] = Trace(files[rank])
        except Refused as problem:
            damaged.append({"rank": rank, "problem": str(problem)})
    windows = windows_of(traces) if traces else {}
    return {
        "traces": [drawn_trace(rank, trace, windows[rank]) for rank, trace in traces.items()],
        "damaged_traces": damaged,
        "traces_not_read": max(0, len(files) - MOST_RANKS),
    }
