"""Sections of the page: tables, and places for charts with what there is to say of them."""

from __future__ import annotations

from typing import Any

from limits import MOST_RANKS, MOST_SIDE_BY_SIDE
from markup import chart, escaped, lacking, missing, note, run_name, said_of, table
from palette import KINDS, PARTS, PHASES, in_order
from quantities import counted, human_count, human_nbytes, milliseconds, or_dash

# ---- How the runs went


def facts_of_one(run: dict[str, Any]) -> str:
    parts = []
    for label, value in run["facts"].items():
        mood = f' class="{run["mood"]}"' if label == "Result" else ""
        parts.append(f"<div><dt>{label}</dt><dd{mood}>{escaped(value)}</dd></div>")
    return f'<dl class="facts">{"".join(parts)}</dl>' + note(f"Folder: <code>{escaped(run['folder'])}</code>")


def fact(run: dict[str, Any], label: str) -> str:
    return f'<span class="{run["mood"] if label == "Result" else ""}">{escaped(run["facts"][label])}</span>'


def headline(data: dict[str, Any]) -> str:
    runs = data["runs"]
    if len(runs) == 1:
        return facts_of_one(runs[0])
    labels, names = list(runs[0]["facts"]), [run_name(run) for run in runs]
    if len(runs) > MOST_SIDE_BY_SIDE:
        rows = [[name, *(fact(run, label) for label in labels)] for name, run in zip(names, runs)]
        return table(["", *labels], rows, numbers_from=len(labels) + 1, kind="below-each-other")
    rows = [[label, *(fact(run, label) for run in runs)] for label in labels]
    rows.append(["Folder", *(f"<code>{escaped(run['folder'])}</code>" for run in runs)])
    return table(["", *names], rows, numbers_from=len(runs) + 1, kind="side-by-side")


# ---- The course of training


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
    choice = f'<fieldset class="screen"><span>x axis</span>{axes}{logarithm}</fieldset>'
    return f'<div class="controls">{shown}{choice}</div>'


def words_on_curves(data: dict[str, Any]) -> list[str]:
    words = []
    for run in data["runs"]:
        who = said_of(run, data["runs"])
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


def loss_legend(data: dict[str, Any]) -> str:
    runs = data["runs"]
    units = " / ".join(sorted({run["loss_unit"] for run in runs}))
    crosses = "; crosses: skipped steps." if any(run["skipped_steps"] for run in runs) else "."
    legend = (
        f"Loss in {units}. Faint: each step; line: average over about {data['average_steps']:,} steps; "
        f"circles: validation{crosses}"
    )
    if any(run["unigram_entropy"] is not None for run in runs):
        legend += " Dotted: the unigram entropy, the loss of knowing just how often each byte occurs."
    return note(legend)


def loss_section(data: dict[str, Any]) -> str:
    runs = data["runs"]
    empty = [run for run in runs if not run["steps"]]
    lack = missing(runs, empty, "no step is recorded yet", "metrics.jsonl gets a line at the end of each.")
    drawn = chart("loss", 400) if any(run["steps"] or run["curves"]["val_loss"]["y"] for run in runs) else ""
    return controls(runs) + drawn + loss_legend(data) + "".join(map(note, words_on_curves(data))) + lack


def course_section(data: dict[str, Any]) -> str:
    if not any(run["steps"] for run in data["runs"]):
        return ""
    charts = "".join(chart(name, 260) for name in ("tokens_per_s", "grad_norm", "lr"))
    clips = any(run["clipping"] for run in data["runs"])
    return f'<div class="three">{charts}</div>' + note(
        f"Tokens per second: faint each step, the line an average over about {data['average_steps']:,} steps."
        + (" Gradient norm: before clipping; dotted: where clipping begins." if clips else "")
    )


# ---- The time of a step

ABOUT_TIMES = (
    "Milliseconds of one optimizer step, the mean over ranks and steps. Right: what the engine did within forward, "
    "backward and step: copies of gradients, their reduction, waiting for parameters (gather) and for other ranks "
    "(wait), the norm, the update, publishing."
)


def row_of_times(run: dict[str, Any]) -> list[str]:
    total, row = run["ms_per_step"]["total"], [run_name(run)]
    for name in ("total", *PHASES, *PARTS):
        value = run["ms_per_step"][name]
        share = f"<small>{100 * value / total:.1f} %</small>" if total and value is not None else ""
        row.append(or_dash(value, milliseconds) + share)
    return row


def time_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["ms_per_step"]]
    lack = [run for run in data["runs"] if not run["ms_per_step"]]
    without = missing(data["runs"], lack, "no times by part", "They are in summary.json, which is written at the end.")
    if not runs:
        return without
    height = 142 + 34 * len(runs)
    charts = f'<div class="two">{chart("phases", height)}{chart("parts", height)}</div>'
    head = ["ms per step", *(name.replace("_", " ") for name in ("total", *PHASES, *PARTS))]
    return charts + table(head, [row_of_times(run) for run in runs]) + note(ABOUT_TIMES) + without


# ---- Memory

ABOUT_MEMORY = (
    "Peaks of each kind on each rank. They need not be at the same time: a bar is as long as the memory could have "
    "been at most. PSS is all memory of the ranks on the host at the end, libtorch's code included."
)


def rows_of_memory(run: dict[str, Any], kinds: list[str]) -> list[list[str]]:
    def most(which: str) -> list[str]:
        values = [max(one[which].get(kind, 0) for one in run["memory"]["by_rank"]) for kind in kinds]
        return [human_nbytes(value) if value else "–" for value in values]

    at_the_end = [or_dash(run["memory"][name], human_nbytes) for name in ("ddp_states_nbytes", "host_pss_nbytes")]
    return [
        [run_name(run), "largest peak", *most("peak"), "", ""],
        ["", "at the end", *most("end"), *at_the_end],
    ]


def memory_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["memory"]]
    lack = [run for run in data["runs"] if not run["memory"]]
    without = missing(data["runs"], lack, "no memory by kind", "It is in summary.json, which is written at the end.")
    if not runs:
        return without
    bars = [one for run in runs for one in run["memory"]["by_rank"]]
    kinds = in_order({kind for one in bars for kind, value in one["peak"].items() if value}, KINDS)
    head = ["", "of any rank", *kinds, "states with DDP", "PSS, all ranks"]
    rows = [row for run in runs for row in rows_of_memory(run, kinds)]
    words = ABOUT_MEMORY
    for run in runs:
        if run["memory"]["ranks"] > len(run["memory"]["by_rank"]):
            words += f" {escaped(run['name'])}: the {MOST_RANKS} fullest of {run['memory']['ranks']} ranks are drawn."
    return chart("memory", 100 + 26 * len(bars)) + table(head, rows, numbers_from=2) + note(words) + without


# ---- A traced step

ABOUT_TRACES = (
    "One traced step. Upper chart: memory by kind; upright lines: where forward, backward and step begin. Lower "
    "chart: what the training thread did, and calls on their way; paler: several, with pauses. Drag to zoom in "
    "on both, double-click to zoom out. All of it: open "
    "<code>trace/rank0.json</code> in Perfetto (ui.perfetto.dev)."
)
ABOUT_DISK = (
    " A disk request ends where the engine looks for it: a read that was queued ahead seems to last until the next "
    "pass."
)


def has_disk_rows(run: dict[str, Any]) -> bool:
    return any(row["label"] == "disk" for trace in run["traces"] for row in trace["rows"])


def words_on_damage(runs: list[dict[str, Any]]) -> str:
    return "".join(
        lacking(
            f"{said_of(run, runs)}the trace of rank {damaged['rank']} is damaged, and is left out: "
            f"{escaped(damaged['problem'])}"
        )
        for run in runs
        for damaged in run["damaged_traces"]
    )


def words_on_traces(runs: list[dict[str, Any]]) -> str:
    words = ABOUT_TRACES + (ABOUT_DISK if any(map(has_disk_rows, runs)) else "")
    for run in runs:
        if run["traces_not_read"]:
            words += f" {escaped(run['name'])}: traces of {run['traces_not_read']} more ranks are not drawn."
    return note(words)


def choice_of_rank(runs: list[dict[str, Any]]) -> str:
    options = "".join(
        f'<option value="{i} {k}">{escaped(run["name"])}, rank {trace["rank"]}</option>'
        for i, run in enumerate(runs)
        for k, trace in enumerate(run["traces"])
    )
    return f'<div class="controls"><label>Rank <select id="traced-rank">{options}</select></label></div>'


def trace_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["traces"]]
    lack = [run for run in data["runs"] if not run["traces"] and not run["damaged_traces"]]
    without = missing(data["runs"], lack, "no trace of a step", "For memory and calls over a step: train with --trace.")
    damage = words_on_damage(data["runs"])
    if not runs:
        return damage + without
    charts = chart("traced-memory", 330) + chart("timeline", 300) + '<p class="note" id="about-trace"></p>'
    return choice_of_rank(data["runs"]) + damage + charts + words_on_traces(runs) + without


# ---- Traffic

ABOUT_TRAFFIC = (
    "Received per step by each rank, in units of P (N-1)/N elements (P parameters, N ranks). With one micro-batch "
    "theory says 2 at stages 0 to 2, 3 at stage 3 with the copying store, 1 with the node-shared store; each "
    "further micro-batch adds a reduction. One rank receives nothing."
)


def row_of_traffic(run: dict[str, Any], largest: float) -> list[str]:
    received, ranks, numel = run["received_per_step_in_model_sizes"], run["ranks"], run["parameters_numel"]
    elements = received * numel * (ranks - 1) / ranks if ranks and numel else None
    bar = f'<div class="bar" style="width:{100 * received / largest:.1f}%;background:{run["colour"]}"></div>'
    return [run_name(run), bar, f"{received:.2f}", or_dash(elements, human_count)]


def traffic_section(data: dict[str, Any]) -> str:
    known = "received_per_step_in_model_sizes"
    runs = [run for run in data["runs"] if run[known] is not None]
    lack = [run for run in data["runs"] if run[known] is None]
    without = missing(data["runs"], lack, "no traffic", "It is in summary.json, which is written at the end.")
    if not runs:
        return without
    largest = max(run[known] for run in runs) or 1
    rows = [row_of_traffic(run, largest) for run in runs]
    head = ["", "", "model sizes", "elements, about"]
    return table(head, rows, numbers_from=2, kind="traffic") + note(ABOUT_TRAFFIC) + without
