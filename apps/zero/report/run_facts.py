"""The first table of the page: how a run went, in words and a few numbers."""

from __future__ import annotations

from typing import Any

from curves import averaged, last_finite, no_nan
from json_files import number_at, text_at
from limits import SHORTEST_AVERAGE
from quantities import duration, human_count, human_nbytes, or_dash, or_nothing
from run_folders import Run


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


def ranks_in_words(run: Run) -> str:
    ranks, threads = run.ranks(), number_at(run.summary, "threads_per_rank")
    if ranks is None:
        return "–"
    return f"{ranks:.0f}" + (f" × {threads:.0f} thread{'' if threads == 1 else 's'}" if threads else "")


def precision_of(config: dict[str, Any]) -> str:
    for name in ("bf16", "fp16"):
        if isinstance(config.get(name), dict) and config[name].get("enabled") is True:
            return name
    return "fp32"


def zero_in_words(run: Run) -> str:
    stage = number_at(run.summary, "stage")
    stage = number_at(run.config, "zero_optimization", "stage") if stage is None else stage
    precision = f", {precision_of(run.config)}" if run.config else ""
    return or_dash(stage, lambda v: f"stage {v:.0f}") + precision


def started_at(run: Run) -> str:
    text = text_at(run.environment, "run", "started_at")
    return text.replace("T", " ").replace("Z", " UTC") or "–"


def validations_of(run: Run) -> dict[str, float | None]:
    if not run.metrics.validations:
        return {"val_loss": None, "val_loss_at_start": None, "val_bits_per_byte": None}
    first, last = run.metrics.validations[0], run.metrics.validations[-1]
    return {
        "val_loss": no_nan(last["y"]),
        "val_loss_at_start": no_nan(first["y"]) if first["step"] == 0 else None,
        "val_bits_per_byte": no_nan(last["bits"]),
    }


def validation_in_words(run: Run, results: dict[str, float | None], unit: str) -> str:
    """The last one, and the best where that is another."""
    if not run.metrics.validations:
        return or_dash(None, str)
    finite = [one for one in run.metrics.validations if one["y"] == one["y"]]
    best, last = min(finite, key=lambda one: one["y"], default=None), run.metrics.validations[-1]
    words = or_nothing(results["val_loss"], lambda v: f"{v:.4f} {unit}") or f"no finite number after {last['step']:.0f} steps"
    words += or_nothing(results["val_loss_at_start"], lambda v: f", {v:.3f} before step 1")
    if best and best["step"] not in (last["step"], 0):
        words += f"; best {best['y']:.4f} after {best['step']:.0f} steps"
    return words


def results_of(run: Run) -> dict[str, float | None]:
    """From the summary, or from the metrics of a run that has none."""
    seconds, tokens = last_finite(run.metrics.seconds), last_finite(run.metrics.tokens)
    summary = run.summary if run.summary_is_of_now() else None
    if summary:
        train_loss, speed = number_at(summary, "train_loss"), number_at(summary, "tokens_per_s")
    else:
        train_loss = last_finite(averaged(run.metrics.columns["loss"], SHORTEST_AVERAGE))
        speed = tokens / seconds if tokens and seconds else None
    return validations_of(run) | {
        "train_loss": train_loss,
        "tokens": tokens,
        "tokens_per_s": speed,
        "training_seconds": seconds,
        "total_seconds": number_at(summary, "total_seconds"),
        "host_pss_nbytes": number_at(summary, "memory", "host_pss_nbytes"),
    }


def facts_of(run: Run) -> dict[str, str]:
    results, unit = results_of(run), run.loss_unit().replace("nats per", "nats a")
    in_all = or_nothing(results["total_seconds"], lambda v: f", all in {duration(v)}")
    return {
        "Result": result_in_words(run)[0],
        "Model": model_in_words(run),
        "Ranks": ranks_in_words(run),
        "ZeRO": zero_in_words(run),
        "Validation loss": validation_in_words(run, results, unit),
        "Bits per byte": or_dash(results["val_bits_per_byte"], lambda v: f"{v:.3f}"),
        "Training loss": or_dash(results["train_loss"], lambda v: f"{v:.4f} {unit}"),
        "Trained on": or_dash(results["tokens"], lambda v: f"{human_count(v)} tokens"),
        "Speed": or_dash(results["tokens_per_s"], lambda v: f"{v:,.0f} tokens/s"),
        "Time": or_dash(results["training_seconds"], duration) + in_all,
        "Memory": or_dash(results["host_pss_nbytes"], lambda v: f"{human_nbytes(v)}, all ranks"),
        "Started": started_at(run),
    }
