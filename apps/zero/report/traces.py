"""Reads trace/rank<N>.json: what a rank did, in microseconds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from json_files import Refused, number_at, of_path, read_json, text_at, value_at
from palette import PARTS

PHASES_OF_A_TRACE = ("forward", "backward", "forward and backward", "step")


class Window(NamedTuple):
    """The part of a trace that is drawn: an optimizer step."""

    begin: float
    end: float
    step: str


class Trace:
    """Spans of threads, calls on their way, and samples of memory."""

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
        self.open: dict[tuple[str, Any], list[dict[str, Any]]] = {}  # calls that have begun
        for event in events:
            if isinstance(event, dict):
                self.take(event)
        self.finish()

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
        elif phase == "C":
            self.take_memory(event, name, at)

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

    def take_memory(self, event: dict[str, Any], name: str, at: float) -> None:
        if name == "memory by kind":
            args = value_at(event, "args")
            kinds = {kind: number_at(args, kind) for kind in args} if isinstance(args, dict) else {}
            self.kinds.append((at, {kind: value for kind, value in kinds.items() if value is not None}))
        elif name == "process memory":
            resident = number_at(event, "args", "resident")
            if resident is not None:
                self.resident.append((at, resident))

    def finish(self) -> None:
        """Events need not be in order, and calls need not end within the trace."""
        for calls in self.open.values():
            for call in calls:
                self.calls[call["category"]].append(call | {"end": math.inf})
        self.spans.sort(key=lambda span: (span["begin"], -span["end"]))
        for calls in self.calls.values():
            calls.sort(key=lambda call: call["begin"])
        self.kinds.sort(key=lambda sample: sample[0])
        self.resident.sort()

    def training_thread(self) -> str:
        return next((span["thread"] for span in self.spans if span["name"] in PHASES_OF_A_TRACE), "1")

    def phases(self) -> list[dict[str, Any]]:
        training = self.training_thread()
        return [span for span in self.spans if span["name"] in PHASES_OF_A_TRACE and span["thread"] == training]

    def steps(self) -> list[Window]:
        """The whole optimizer steps."""
        training = self.training_thread()
        found: list[Window] = []
        begin = None
        for span in self.spans:
            if span["thread"] != training:
                continue
            begin = span["begin"] if begin is None else begin
            if span["name"] == "step" and span["what"] != "micro-batch":
                found.append(Window(begin, span["end"], span["what"]))
                begin = None
            elif found and span["begin"] < found[-1].end:  # a part of that step
                begin = None
        return found

    def extent(self) -> Window:
        times = [time for span in self.spans for time in (span["begin"], span["end"])]
        times += [call["begin"] for calls in self.calls.values() for call in calls] + [at for at, _ in self.kinds]
        return Window(min(times), max(times), "") if times else Window(0.0, 0.0, "")
