"""The data of a page, as JSON has it: its tables and its charts are drawn from nothing else."""

from __future__ import annotations

import datetime
from typing import Any

from curves import curves_of
from json_files import flat, number_at, of_path, value_at
from limits import MOST_POINTS, MOST_RANKS, MOST_SIDE_BY_SIDE, SHORTEST_AVERAGE
from palette import CALLS, COLOURS, DASHES, KIND_OF_KEY, KINDS, PARTS, PHASES, in_order
from quantities import human_nbytes
from run_facts import facts_of, result_in_words
from run_folders import Run
from timelines import traces_of

OF_OPTIONS = " (zero train)"  # after the names of its options, among keys of the configuration


def memory_of_rank(rank: int, of_summary: dict[str, Any]) -> dict[str, Any]:
    kinds = {KIND_OF_KEY.get(key, key): figures for key, figures in of_summary.items()}
    names = in_order(kinds, KINDS)
    return {
        "rank": rank,
        "peak": {kind: number_at(kinds, kind, "peak_nbytes") or 0 for kind in names},
        "end": {kind: number_at(kinds, kind, "current_nbytes") or 0 for kind in names},
    }


def memory_of(run: Run) -> dict[str, Any] | None:
    """Of the fullest ranks."""
    by_rank = value_at(run.summary, "memory", "by_rank")
    if not isinstance(by_rank, list) or not by_rank:
        return None
    found = [memory_of_rank(rank, kinds if isinstance(kinds, dict) else {}) for rank, kinds in enumerate(by_rank)]
    fullest = sorted(found, key=lambda one: -sum(one["peak"].values()))[:MOST_RANKS]
    return {
        "ranks": len(found),
        "by_rank": sorted(fullest, key=lambda one: one["rank"]),
        "ddp_states_nbytes": number_at(run.summary, "memory", "ddp_states_nbytes_per_rank"),
        "host_pss_nbytes": number_at(run.summary, "memory", "host_pss_nbytes"),
    }


def times_of(run: Run) -> dict[str, float | None] | None:
    """Milliseconds of a step by part."""
    times = run.summary.get("ms_per_step") if run.summary else None
    return {name: number_at(times, name) for name in ("total", *PHASES, *PARTS)} if times else None


def settings_of(run: Run) -> dict[str, Any]:
    """What the run was told: options of `zero train`, then the keys of the configuration."""
    elsewhere = {"config", "model", "run_folder", "command_line", "tensorboard_folder", "corpus_hash", "corpus_folder"}
    of_plan = {key + OF_OPTIONS: value for key, value in run.plan.items() if key not in elsewhere}
    return of_plan | (flat(run.config) if run.config else {})


def earlier_starts(environment: dict[str, Any]) -> dict[str, Any]:
    found = {}
    earlier = environment.get("earlier")
    for count, start in enumerate(earlier if isinstance(earlier, list) else [], 1):
        for key, value in flat(start).items():
            name = key.rpartition(".")[2]
            if name in ("command_line", "started_at", "ranks"):
                found[f"earlier start {count}: {name}"] = value
    return found


def environment_of(run: Run) -> dict[str, Any]:
    if run.environment is None:
        return {}
    found = flat({key: value for key, value in run.environment.items() if key != "earlier"})
    found |= earlier_starts(run.environment)
    return {
        key: human_nbytes(value) if key.endswith("_nbytes") and number_at(found, key) else value
        for key, value in found.items()
        if value not in ({}, [])
    }


def unigram_entropy_of(run: Run) -> float | None:
    """It is known in nats a byte."""
    baselines = [one["baseline"] for one in run.metrics.validations if one["baseline"] == one["baseline"]]
    return baselines[-1] if baselines and run.loss_unit() == "nats per byte" else None


def course_of(run: Run, average: int) -> dict[str, Any]:
    """Steps and their curves."""
    return {
        "loss_unit": run.loss_unit(),
        "unigram_entropy": unigram_entropy_of(run),
        "clipping": number_at(run.config, "gradient_clipping") or None,
        "steps": len(run.metrics.step),
        "not_numbers": run.metrics.not_numbers(),
        "skipped_steps": len(run.metrics.skipped),
        "cut_off": run.metrics.cut_off,
        "curves": curves_of(run.metrics, average),
    }


def data_of_run(run: Run, place: int, average: int) -> dict[str, Any]:
    words, mood = result_in_words(run)
    return {
        "name": run.name,
        "folder": of_path(run.folder),
        "colour": COLOURS[place % len(COLOURS)],
        "dash": DASHES[place // len(COLOURS) % len(DASHES)],
        "result": words,
        "mood": mood,
        "facts": facts_of(run),
        **course_of(run, average),
        "has_summary": run.summary is not None,
        "summary_is_of_now": run.summary_is_of_now(),
        "ms_per_step": times_of(run),
        "memory": memory_of(run),
        "received_per_step_in_model_sizes": number_at(run.summary, "received_per_step_in_model_sizes"),
        "ranks": run.ranks(),
        "parameters_numel": number_at(run.plan, "parameters_numel"),
        **traces_of(run.folder),
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
