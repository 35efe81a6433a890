"""apps/zero/report: its page has the numbers of the run folders, needs nothing else, and is drawn by a browser."""

from __future__ import annotations

import html.parser
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("plotly", reason="report_runs.py needs plotly")

SCRIPT = Path(__file__).resolve().parents[2] / "apps" / "zero" / "report" / "report_runs.py"
KINDS = ["parameters", "gather buffers", "master weights", "optimizer", "gradients", "buckets", "activations"]
PARTS = [
    "data",
    "forward",
    "backward",
    "step",
    "gradient_copy",
    "reduce",
    "gather",
    "wait",
    "norm",
    "update",
    "publish",
]


def loaded() -> ModuleType:
    """The program changes how this process imports; other tests want that as it was."""
    spec = importlib.util.spec_from_file_location("report_runs", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    places, writes_nothing = sys.path[:], sys.dont_write_bytecode
    try:
        sys.dont_write_bytecode = True
        spec.loader.exec_module(module)
    finally:
        sys.path[:], sys.dont_write_bytecode = places, writes_nothing
    return module


report_runs = loaded()


# ---- Run folders


def step_line(step: int, **others: object) -> dict[str, object]:
    loss = 2 + 3.5 / step**0.5 + 0.05 * math.sin(7 * step)
    line = {
        "step": step,
        "loss": loss,
        "grad_norm": 1 + 1 / step,
        "lr": 1e-3 * min(1, step / 10),
        "tokens": 2048 * step,
    }
    return line | {"seconds": 0.17 * step, "tokens_per_s": 12000.0 + 500 * math.sin(step)} | others


def validation_line(step: int, loss: float) -> dict[str, object]:
    return {
        "step": step,
        "val_loss": loss,
        "val_bits_per_byte": loss / math.log(2),
        "baseline": 3.2,
        "val_loss_over_baseline": loss / 3.2,
    }


def summary_of(steps: int, ranks: int) -> dict[str, Any]:
    by_rank = [
        {kind: {"current_nbytes": 10**6 * i, "peak_nbytes": 10**6 * (i + 1) + rank} for i, kind in enumerate(KINDS)}
        for rank in range(ranks)
    ]
    times = {"total": 171.8} | {part: 1.5 * (i + 1) for i, part in enumerate(PARTS)}
    return {
        "finished": True, "diverged": False, "save_problem": None, "stopped_by": None, "steps": steps,
        "steps_wanted": steps, "ranks": ranks, "threads_per_rank": 1, "stage": 3, "train_loss": 2.5,
        "tokens": 2048 * steps,
        "tokens_per_s": 11900.5, "training_seconds": 0.17 * steps, "total_seconds": 0.2 * steps, "ms_per_step": times,
        "received_per_step_in_model_sizes": 2.0,
        "memory": {"by_rank": by_rank, "ddp_states_nbytes_per_rank": 30_400_000, "host_pss_nbytes": 346_300_000},
    }  # fmt: skip


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def write_lines(folder: Path, lines: list[dict[str, object]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_run(folder: Path, steps: int = 40, ranks: int = 2, stage: int = 3) -> Path:
    folder.mkdir(parents=True)
    lines = [validation_line(0, 5.5), *map(step_line, range(1, steps + 1)), validation_line(steps, 2.75)]
    write_lines(folder, lines)
    write_json(folder / "summary.json", summary_of(steps, ranks))
    config = {
        "train_batch_size": 16,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zerotorch": {"store": "auto", "unit_names": []},
    }
    write_json(folder / "config.json", config)
    plan = {
        "preset": "gpt-2m",
        "parameters_numel": 1_900_000,
        "layers": 4,
        "dim": 192,
        "heads": 6,
        "seq": 128,
        "steps": steps,
        "ranks": ranks,
        "token_nbytes": 1,
        "config": "{}",
        "model": "",
        "seed": 1234,
    }
    write_json(folder / "plan.json", plan)
    run = {"command_line": "zero train --prompt '<i>'", "started_at": "2026-01-02T03:04:05Z", "ranks": ranks}
    host = {"name": "here", "cores_available": 2, "memory_total_nbytes": 25_276_510_208}
    write_json(
        folder / "environment.json", {"versions": {"zerotorch": "0.1.0"}, "host": host, "variables": {}, "run": run}
    )
    return folder


class TraceWriter:
    """Writes trace/rank<N>.json as the engine does: steps of micro-batches over layers."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.now = rank, ranks, 1000.0 + 37 * rank
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": "rank"}}]
        self.ids = itertools.count(1)
        self.bytes = dict.fromkeys(KINDS, 0) | {
            "parameters": 2_000_000,
            "master weights": 2_000_000,
            "optimizer": 8_000_000,
        }

    def span(self, name: str, begin: float, what: str = "", category: str = "part") -> None:
        event = {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": begin,
            "dur": self.now - begin,
            "pid": self.rank,
            "tid": 1,
        }
        self.events.append(event | ({"args": {"what": what}} if what else {}))

    def call(self, category: str, name: str, begin: float, end: float, nbytes: int) -> None:
        event = {"cat": category, "name": name, "id": hex(next(self.ids)), "pid": self.rank, "tid": 2}
        self.events.append({"ph": "b", "ts": begin, "args": {"nbytes": nbytes}, **event})
        self.events.append({"ph": "e", "ts": end, **event})

    def change(self, kind: str, nbytes: int) -> None:
        self.bytes[kind] += nbytes
        self.events.append(
            {"ph": "C", "name": "memory by kind", "ts": self.now, "pid": self.rank, "args": dict(self.bytes)}
        )

    def part(self, name: str, us: float, what: str = "") -> None:
        begin, self.now = self.now, self.now + us
        self.span(name, begin, what)

    def forward(self, layers: int) -> None:
        begin = self.now
        for layer in range(layers):
            self.change("gather buffers", 400_000)
            self.call("communication", f"all_gather layer.{layer}", self.now - 300, self.now + 400, 400_000)
            self.part("gather", 400, f"layer.{layer}")
            self.now += 5000 + 200 * layer
            self.change("activations", 1_500_000)
            self.change("gather buffers", -400_000)
        self.span("forward", begin, category="engine")

    def backward(self, layers: int) -> None:
        begin = self.now
        for layer in reversed(range(layers)):
            self.now += 9000 + 300 * self.rank
            self.change("activations", -1_500_000)
            self.change("buckets", 400_000)
            self.part("gradient_copy", 300, f"layer.{layer}")
            self.call("communication", f"reduce_scatter layer.{layer}", self.now, self.now + 7000, 400_000)
            self.part("reduce", 500, f"layer.{layer}")
            self.change("buckets", -400_000)
            self.change("gradients", 200_000)
        self.span("backward", begin, category="engine")

    def step(self, layers: int, what: str) -> None:
        begin = self.now
        if what != "micro-batch":
            self.part("wait", 900 if self.rank == 0 else 200)
            self.part("norm", 150)
            for layer in range(layers):
                self.call("disk", "read", self.now - 400, self.now + 100, 800_000)
                self.part("update", 700, f"layer.{layer}")
                self.call("disk", "write", self.now, self.now + 600, 800_000)
            self.part("publish", 100)
            self.change("gradients", -self.bytes["gradients"])
        self.span("step", begin, what, "engine")
        self.events.append(
            {"ph": "C", "name": "process memory", "ts": self.now, "pid": self.rank, "args": {"resident": 30_000_000}}
        )
        self.now += 800  # data

    def write(self, folder: Path) -> None:
        (folder / "trace").mkdir(exist_ok=True)
        facts = {"rank": self.rank, "ranks": self.ranks, "events_left_out": 3}
        write_json(folder / "trace" / f"rank{self.rank}.json", {"traceEvents": self.events, "metadata": facts})


def add_traces(folder: Path, ranks: int = 2, steps: int = 2, micro_batches: int = 2, layers: int = 6) -> None:
    for rank in range(ranks):
        writer = TraceWriter(rank, ranks)
        writer.change("parameters", 0)
        for step in range(1, steps + 1):
            for micro_batch in range(1, micro_batches + 1):
                writer.forward(layers)
                writer.backward(layers)
                writer.step(layers, f"step {step}" if micro_batch == micro_batches else "micro-batch")
        unknown: list[Any] = [
            {"ph": "i", "name": "mark", "ts": 5},
            {"ph": "X", "name": "?", "ts": 1, "dur": 2},
            7,
            {"ph": "e", "ts": 1},
        ]
        writer.events += unknown
        writer.write(folder)


# ---- Pages


def report(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> tuple[int, str]:
    code = report_runs.main(["--out", str(out), *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


class Elements(html.parser.HTMLParser):
    """What a page has besides plotly's script: tags with their attributes, texts, and the texts of scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.script: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.script = (dict(attributes).get("id") or str(len(self.scripts))) if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self.script = None

    def handle_data(self, text: str) -> None:
        if self.script is not None:
            self.scripts[self.script] = self.scripts.get(self.script, "") + text
        else:
            self.texts.append(text)


def data_in(page: Path) -> tuple[dict[str, Any], str]:
    """And the texts that one reads."""
    elements = Elements(page.read_text())
    return json.loads(elements.scripts["zerotorch-report"]), "\n".join(elements.texts)


def made(capsys: pytest.CaptureFixture[str], tmp_path: Path, *runs: Path) -> tuple[dict[str, Any], str]:
    page = tmp_path / "page.html"
    code, said = report(capsys, page, *runs)
    assert code == 0, said
    return data_in(page)


def test_the_numbers_are_those_of_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, text = made(capsys, tmp_path, make_run(tmp_path / "mine"))
    lines = [json.loads(line) for line in (tmp_path / "mine" / "metrics.jsonl").read_text().splitlines()]
    steps, validations = [line for line in lines if "loss" in line], [line for line in lines if "val_loss" in line]
    (run,) = data["runs"]
    for name in ("loss", "tokens_per_s", "grad_norm", "lr"):
        assert run["curves"][name]["y"] == [line[name] for line in steps]
        for axis in ("step", "tokens", "seconds"):
            assert run["curves"][name][axis] == [line[axis] for line in steps]
    assert run["curves"]["val_loss"]["y"] == [line["val_loss"] for line in validations]
    assert run["curves"]["val_loss"]["step"] == [0, 40]
    assert run["curves"]["val_loss"]["tokens"] == [0, 40 * 2048]
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert run["ms_per_step"] == summary["ms_per_step"]
    assert [one["peak"]["activations"] for one in run["memory"]["by_rank"]] == [7_000_000, 7_000_001]
    for words in (
        "finished: 40 of 40 steps",
        "2.7500 nats a byte, 5.500 before step 1",
        "11,900 tokens/s",
        "stage 3, bf16",
    ):
        assert words in text
    for words in ("171.8", "gradient copy", "7.0 MB", "346.3 MB", "2026-01-02 03:04:05 UTC", "zero_optimization.stage"):
        assert words in text
    assert "no trace of a step. For memory and calls over a step: train with --trace" in text


def test_the_average_is_that_of_zero_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = made(capsys, tmp_path, make_run(tmp_path / "mine"))
    curves, total, weight = data["runs"][0]["curves"], 0.0, 0.0
    for loss in curves["loss"]["y"]:
        total, weight = 0.9 * total + 0.1 * loss, 0.9 * weight + 0.1
    assert curves["loss_average"]["y"][-1] == pytest.approx(total / weight, rel=1e-12)


def test_the_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(capsys, tmp_path, make_run(tmp_path / "mine"))
    page = (tmp_path / "page.html").read_text()
    elements = Elements(page)
    for tag, attributes in elements.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed")
        for name in ("src", "srcset", "action", "data"):
            assert name not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    own = page.replace(elements.scripts["plotly"], "")
    assert len(own) < 300_000
    assert not re.search(r"https?:|@import|\bfetch\(|XMLHttpRequest|import\(|url\(", own)
    policies = [attributes["content"] for _, attributes in elements.tags if "http-equiv" in attributes]
    assert policies and "default-src 'none'" in str(policies[0]) and "http" not in str(policies[0])


def test_three_runs_are_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / "one"), make_run(tmp_path / "two", stage=1), make_run(tmp_path / "three", steps=20)]
    data, text = made(capsys, tmp_path, *runs)
    assert [run["name"] for run in data["runs"]] == ["one", "two", "three"]
    assert len({run["colour"] for run in data["runs"]}) == 3
    page = (tmp_path / "page.html").read_text()
    assert "<mark>1</mark>" in page and "<mark>bf16" not in page
    assert re.search(r"(\d+) of (\d+) keys are the same in all runs", text)
    assert data["title"] == "Training runs one, two, three"


def test_runs_of_one_name_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, other = (make_run(tmp_path / name) for name in ("a/run", "b/run", "c/other"))
    data, _ = made(capsys, tmp_path, first, second, other, first)
    assert [run["name"] for run in data["runs"]] == ["a/run (1)", "b/run", "other", "a/run (2)"]


def test_a_run_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step":41,"lo')
    data, text = made(capsys, tmp_path, folder)
    assert "still running, or killed: 40 of 40 steps, no summary yet" in text
    assert "the last line of metrics.jsonl was cut off" in text
    assert "no times by part" in text and "no memory by kind" in text and "no traffic" in text
    assert data["runs"][0]["steps"] == 40 and data["runs"][0]["ms_per_step"] is None


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"stopped_by": "SIGTERM", "finished": False}, "stopped by SIGTERM after 40 of 40 steps"),
        ({"stopped_by": "max_minutes"}, "stopped by --max-minutes after"),
        ({"diverged": True}, "diverged at step 40 of 40"),
        ({"save_problem": "no room"}, "finished: 40 of 40 steps; the last checkpoint: no room"),
        ({"steps": 30}, "the summary is of an earlier start"),
        (
            {"ms_per_step": None, "memory": {"by_rank": 7}, "ranks": "x", "received_per_step_in_model_sizes": None},
            "finished",
        ),
    ],
)
def test_results_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: str
) -> None:
    folder = make_run(tmp_path / "mine")
    write_json(folder / "summary.json", summary_of(40, 2) | changes)
    assert words in made(capsys, tmp_path, folder)[1]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_few_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int) -> None:
    folder = make_run(tmp_path / "mine", steps=max(1, steps))
    if steps == 0:
        write_lines(folder, [])
    data, text = made(capsys, tmp_path, folder)
    assert len(data["runs"][0]["curves"]["loss"]["y"]) == steps
    assert ("no step is recorded yet" in text) == (steps == 0)


def test_only_what_a_run_must_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    for name in ("summary.json", "config.json", "environment.json"):
        (folder / name).unlink()
    write_json(folder / "plan.json", {})
    _, text = made(capsys, tmp_path, folder)
    assert "no config.json" in text and "no environment.json" in text


def test_losses_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    lines = [*map(step_line, range(1, 11))]
    lines[2]["loss"], lines[4]["loss"], lines[6]["grad_norm"] = math.nan, None, math.inf
    lines[6]["skipped"] = True
    write_lines(folder, [*lines, validation_line(10, math.nan)])
    data, text = made(capsys, tmp_path, folder)
    curves = data["runs"][0]["curves"]
    assert [i for i, y in enumerate(curves["loss"]["y"]) if y is None] == [2, 4]
    assert curves["grad_norm"]["y"][6] is None and curves["skipped"]["step"] == [7]
    assert [i for i, y in enumerate(curves["loss_average"]["y"]) if y is None] == [2, 4]
    assert "no finite number after 10 steps" in text
    assert "2 steps have a loss that is not a finite number" in text and "1 step was skipped" in text


def test_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "<b>x&amp;<img src=y onerror='alert(1)'>"
    folder = make_run(tmp_path / name)
    write_json(folder / "environment.json", {"host": {"name": "</script><script>alert(2)</script>\ud800"}})
    data, text = made(capsys, tmp_path, folder)
    assert data["runs"][0]["name"] == name and name in text and "</script><script>alert(2)</script>" in text
    elements = Elements((tmp_path / "page.html").read_text())
    assert not [tag for tag, _ in elements.tags if tag in ("b", "img")]
    assert len([tag for tag, _ in elements.tags if tag == "script"]) == 4
    report(capsys, tmp_path / "titled.html", folder, "--title", "</title><b>")
    assert "</title><b>" not in (tmp_path / "titled.html").read_text()


def test_a_million_steps_are_thinned_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, steps, lowest, highest = make_run(tmp_path / "mine"), 1_000_000, 654_321, 123_456
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in range(1, steps + 1):
            loss = -1 if step == lowest else 99 if step == highest else 2 + step % 7 / 10
            text = "null" if step == 777_777 else f"{loss}"
            metrics.write(f'{{"step":{step},"loss":{text},"grad_norm":1.5,"lr":0.001,"tokens":{step * 8}')
            metrics.write(f',"seconds":{step / 10},"tokens_per_s":80.0}}\n')
    began = time.monotonic()
    data, text = made(capsys, tmp_path, folder)
    assert time.monotonic() - began < 90
    loss = data["runs"][0]["curves"]["loss"]
    assert all(len(curve["y"]) <= 4000 for curve in data["runs"][0]["curves"].values())
    assert loss["step"][0] == 1 and loss["step"][-1] == steps and loss["step"] == sorted(loss["step"])
    found = dict(zip(loss["step"], loss["y"]))
    assert found[lowest] == -1 and found[highest] == 99 and found[777_777] is None
    assert "1,000,000 steps are thinned out to at most 4,000 points a curve" in text
    assert (tmp_path / "page.html").stat().st_size < 8_000_000


# ---- Traces


def test_the_last_whole_step_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    add_traces(folder)
    data, text = made(capsys, tmp_path, folder)
    first, second = data["runs"][0]["traces"]
    assert (first["rank"], second["rank"], first["step"]) == (0, 1, "step 2")
    # Two micro-batches of forward and backward, and one step: that of the first is none.
    assert [one["name"] for one in first["begins"]] == ["forward", "backward", "forward", "backward", "step"]
    assert first["begins"][0]["ms"] == 0 and first["ms"] == second["ms"]
    rows = {row["label"]: row for row in first["rows"]}
    assert rows["training thread"]["name"] == ["forward", "backward", "step"] * 2
    assert rows["engine"]["count"].count(1) and "layer.3" in rows["engine"]["what"]
    calls = [name for row in first["rows"] if row["label"].startswith("communication") for name in row["name"]]
    assert calls.count("all_gather") == 12 and calls.count("reduce_scatter") >= 12
    disk = [count for row in first["rows"] if row["label"].startswith("disk") for count in row["count"]]
    assert sum(disk) == 12
    memory = first["memory"]
    assert memory["ms"][0] == 0 and memory["ms"][-1] == first["ms"]
    totals = [sum(values) for values in zip(*memory["kinds"].values())]
    assert max(memory["kinds"]["activations"]) == 6 * 1_500_000
    assert max(totals) == 12_000_000 + 6 * 1_500_000 + 6 * 200_000 + 400_000
    assert first["resident"]["nbytes"] == [30_000_000] * 2
    assert first["events_left_out"] == 3 and "mine, rank 1" in text


def test_a_large_trace_is_drawn_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    add_traces(folder, ranks=1, steps=1, micro_batches=10, layers=2500)
    events = json.loads((folder / "trace" / "rank0.json").read_text())["traceEvents"]
    assert len(events) > 300_000
    began = time.monotonic()
    data, _ = made(capsys, tmp_path, folder)
    assert time.monotonic() - began < 60
    (trace,) = data["runs"][0]["traces"]
    assert all(len(row["ms"]) <= 4000 for row in trace["rows"]) and len(trace["memory"]["ms"]) <= 4001
    assert (tmp_path / "page.html").stat().st_size < 8_000_000


@pytest.mark.parametrize(
    "events", [[], [{"ph": "C", "name": "memory by kind", "ts": 5, "args": 3}], [None, {}, {"ph": "X"}]]
)
def test_traces_with_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[object]) -> None:
    folder = make_run(tmp_path / "mine")
    (folder / "trace").mkdir()
    write_json(folder / "trace" / "rank0.json", {"traceEvents": events})
    data, _ = made(capsys, tmp_path, folder)
    assert data["runs"][0]["traces"][0]["rows"] == []


def test_disk_requests_are_explained_where_there_are_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    add_traces(folder)
    words = "a read that was queued ahead seems to last until the next pass"
    assert words in made(capsys, tmp_path, folder)[1]
    for path in (folder / "trace").iterdir():
        events = json.loads(path.read_text())["traceEvents"]
        others = [one for one in events if not isinstance(one, dict) or one.get("cat") != "disk"]
        write_json(path, {"traceEvents": others})
    assert words not in made(capsys, tmp_path, folder)[1]


DAMAGE = [
    (b'{"traceEvents": [{"ph":', "rank0.json: is no JSON: "),
    (b"", "rank0.json: is no JSON: "),
    (b"\xff\xfe<b>", "rank0.json: is no JSON: "),
    (b"[]", "rank0.json: is not a JSON object"),
    (b"{}", 'rank0.json: is no trace: it has no "traceEvents"'),
]


@pytest.mark.parametrize("content, words", DAMAGE)
def test_a_damaged_trace_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    folder, page = make_run(tmp_path / "mine"), tmp_path / "page.html"
    add_traces(folder)
    (folder / "trace" / "rank0.json").write_bytes(content)
    code = report_runs.main(["--out", str(page), str(folder)])
    said = capsys.readouterr()
    assert code == 0 and said.out.startswith(f"{page}: 1 run, ")
    assert said.err.startswith("zero report: warning: ") and words in said.err and said.err.count("\n") == 1
    data, text = data_in(page)
    assert [trace["rank"] for trace in data["runs"][0]["traces"]] == [1]
    assert data["runs"][0]["traces"][0]["step"] == "step 2"
    place = page.read_text().index("the trace of rank 0 is damaged, and is left out: ")
    assert page.read_text().index('id="trace-section"') < place < page.read_text().index('id="traced-memory"')
    assert words in text and "mine, rank 1" in text and "no trace of a step" not in text


def test_all_traces_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make_run(tmp_path / name) for name in ("<i>one", "two")]
    add_traces(folders[0])
    for path in (folders[0] / "trace").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    code, said = report(capsys, tmp_path / "page.html", *folders)
    assert code == 0 and said.count("zero report: warning: ") == 2
    data, text = data_in(tmp_path / "page.html")
    assert data["runs"][0]["traces"] == [] and 'id="timeline"' not in (tmp_path / "page.html").read_text()
    for rank in range(2):
        assert f"<i>one: the trace of rank {rank} is damaged, and is left out: " in text
    assert "two: no trace of a step. " in text


# ---- Errors


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def rewritten(name: str, content: bytes) -> Callable[[Path], object]:
    def rewrite(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)

    return rewrite


@pytest.mark.parametrize(
    "spoil, words",
    [
        (without("metrics.jsonl"), "mine: is no run: it has no metrics.jsonl"),
        (without("plan.json"), "mine: is no run: it has no plan.json"),
        (shutil.rmtree, "mine: is no folder"),
        (
            rewritten("metrics.jsonl", b'{"step":1,"loss":2}\n{"step":2,\n{"step":3,"loss":2}\n'),
            "metrics.jsonl:2: is no line",
        ),
        (rewritten("metrics.jsonl", b'{"loss":2}\n'), 'metrics.jsonl:1: is no line of metrics: has no "step"'),
        (
            rewritten("metrics.jsonl", b'{"step":1,"loss":"2"}\n'),
            'metrics.jsonl:1: is no line of metrics: "loss" is no',
        ),
        (rewritten("metrics.jsonl", b"[1]\n"), "metrics.jsonl:1: is no line of metrics: is not a JSON object"),
        (rewritten("metrics.jsonl", b"\xff\xfe\n"), "metrics.jsonl:1: is no line"),
        (rewritten("summary.json", b'{"finished": tr'), "summary.json: is no JSON"),
        (rewritten("summary.json", b"[" * 100_000), "summary.json: is no JSON"),
        (rewritten("config.json", b"7"), "config.json: is not a JSON object"),
    ],
)
def test_what_is_broken_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], words: str
) -> None:
    folder = make_run(tmp_path / "mine")
    spoil(folder)
    code, said = report(capsys, tmp_path / "page.html", folder)
    assert code == 2 and said.startswith("zero report: error: ") and words in said
    assert said.count("\n") == 1 and not list(tmp_path.glob("*page*"))


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    for out, words in ((tmp_path, "is a folder"), (tmp_path / "no" / "page.html", "No such file or directory")):
        code, said = report(capsys, out, folder)
        assert code == 2 and words in said and said.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}


def test_a_page_that_was_there_is_replaced_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, page = make_run(tmp_path / "mine"), tmp_path / "page.html"
    page.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        code, said = report(capsys, page, folder)
    assert code == 2 and "No space left on device" in said and page.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "page.html"}
    assert report(capsys, page, folder)[0] == 0 and page.stat().st_size > 1_000_000


def test_as_a_program(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "mine")
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "page.html"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert re.fullmatch(r".*page\.html: 1 run, \d+\.\d MB; open it in a browser\n", done.stdout)
    (folder / "plan.json").unlink()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1


# As python_script() in apps/zero/host/side_programs.cpp does: without the folders of the script and of the user.
AS_ZERO_STARTS_IT = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    'import runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name="__main__")'
)


def test_as_zero_starts_it(tmp_path: Path) -> None:
    installed, here = tmp_path / "share" / "report", tmp_path / "here"
    shutil.copytree(SCRIPT.parent, installed, ignore=shutil.ignore_patterns("__pycache__"))
    files = sorted(path.name for path in installed.iterdir())
    make_run(here / "mine")
    for name in files + ["json.py", "plotly.py"]:
        if name.endswith(".py"):
            (here / name).write_text("raise SystemExit('a file of the user was imported')")
    script = str(installed / "report_runs.py")
    command = [sys.executable, "-c", AS_ZERO_STARTS_IT, script, "--out", "page.html", "mine"]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=here, env=surroundings)
    assert done.returncode == 0 and done.stdout.startswith("page.html: 1 run, "), done.stderr
    assert sorted(path.name for path in installed.iterdir()) == files


@pytest.mark.parametrize("path", sorted(SCRIPT.parent.glob("*.*")), ids=lambda path: path.name)
def test_no_module_hides_another(path: Path) -> None:
    assert path.suffix in (".py", ".css", ".js")
    assert path.stem not in sys.stdlib_module_names and path.stem not in ("plotly", "narwhals", "numpy", "torch")


# ---- In a browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


# As a reader does: another axis, a run less, another rank.
USE_CONTROLS = """
const waiting = setInterval(async () => {
  if (document.documentElement.dataset.done !== "yes") return;
  clearInterval(waiting);
  for (const choice of ["tokens", "seconds"]) document.querySelector(`input[value=${choice}]`).click();
  document.getElementById("log-axis").click();
  document.querySelector(".chip").click();
  document.getElementById("traced-rank").selectedIndex = 1;
  document.getElementById("traced-rank").dispatchEvent(new Event("change"));
  window.dispatchEvent(new Event("beforeprint"));
  window.dispatchEvent(new Event("afterprint"));
  setTimeout(() => { document.documentElement.dataset.used = "yes"; }, 1000);
}, 50);
"""


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium to draw the page with")
def test_a_browser_draws_every_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / "runs" / name) for name in ("<b>x&amp;y", "second", "of one step")]
    add_traces(runs[0])
    write_lines(runs[1], [step_line(1), step_line(2, loss=None), step_line(3, skipped=True)])
    write_lines(runs[2], [step_line(1)])
    (runs[1] / "summary.json").unlink()
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    made(capsys, tmp_path, *runs)

    def browse(option: str, page: Path) -> str:
        own = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,3000", "--virtual-time-budget=20000"]
        rules = "--host-resolver-rules=MAP * ~NOTFOUND"
        command = [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            rules,
            *own,
            option,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, timeout=240, check=False)
        return done.stdout.decode()

    dom = browse("--dump-dom", page)
    assert re.search(r'<p id="problem" hidden=""></p>', dom), re.findall(r'<p id="problem".*?</p>', dom)
    assert "<title>Training runs" in dom
    assert 'data-done="yes"' in dom and 'data-charts="9"' in dom
    for name in ("loss", "tokens_per_s", "grad_norm", "lr", "phases", "parts", "memory", "traced-memory", "timeline"):
        drawn = dom[dom.index(f'id="{name}"') :]
        assert 'class="main-svg"' in drawn[: drawn.find('class="note"')], name
    assert dom.count('class="main-svg"') >= 9 and dom.count('class="js-line"') > 10 and dom.count('class="point"') > 50
    assert "&lt;b&gt;x&amp;amp;y, rank 0 " in dom.replace("\xa0", " ")  # a label that plotly has drawn
    browse(f"--screenshot={picture}", page)
    assert picture.stat().st_size > 50_000
    page.write_text(page.read_text().replace("</body>", f"<script>{USE_CONTROLS}</script></body>"))
    dom = browse("--dump-dom", page)
    assert re.search(r'<p id="problem" hidden=""></p>', dom), re.findall(r'<p id="problem".*?</p>', dom)
    assert 'data-used="yes"' in dom and ">seconds of training</text>" in dom and ", rank 1, step 2:" in dom


def test_the_best_validation_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "mine")
    lines = [*map(step_line, range(1, 9))]
    write_lines(folder, [validation_line(0, 4.0), *lines[:4], validation_line(4, 2.5), *lines[4:], validation_line(8, 3.0)])
    _, text = made(capsys, tmp_path, folder)
    assert "3.0000" in text and "best 2.5000 after 4 steps" in text


def test_a_link_is_followed_and_what_is_no_file_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "mine")
    target, link, fifo = tmp_path / "target.html", tmp_path / "link.html", tmp_path / "fifo"
    target.write_text("old")
    link.symlink_to(target)
    os.mkfifo(fifo)
    code, said = report(capsys, link, run)
    assert code == 0 and link.is_symlink() and "zerotorch-report" in target.read_text(), said
    for place in (fifo, Path("/dev/full")):
        code, said = report(capsys, place, run)
        assert code == 2 and "is no regular file" in said
    assert fifo.is_fifo() and Path("/dev/full").is_char_device()
