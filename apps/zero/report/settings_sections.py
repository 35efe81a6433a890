"""Sections of the page: what the runs were told, where they ran, and where they differ in it."""

from __future__ import annotations

import json
from typing import Any

from markup import escaped, missing, run_name, table
from page_data import OF_OPTIONS


def as_text(value: Any) -> str:
    """Of a setting, as JSON has it."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def text_of(run: dict[str, Any], which: str, key: str) -> str:
    return as_text(run[which][key]) if key in run[which] else "–"


def keys_of(runs: list[dict[str, Any]], which: str) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run[which]))


def settings_table(runs: list[dict[str, Any]], which: str, keys: list[str], marks: bool) -> str:
    rows = []
    for key in keys:
        values = [text_of(run, which, key) for run in runs]
        tag = "mark" if marks and len(set(values)) > 1 else "span"
        rows.append([escaped(key)] + [f"<{tag}>{escaped(value)}</{tag}>" for value in values])
    return table(["", *map(run_name, runs)], rows, numbers_from=len(runs) + 1, kind="settings")


def settings_list(run: dict[str, Any], keys: list[str]) -> str:
    pairs = "".join(
        f"<div><dt>{escaped(key.removesuffix(OF_OPTIONS))}</dt><dd>{escaped(as_text(run['settings'][key]))}</dd></div>"
        for key in keys
    )
    return f'<dl class="columns">{pairs}</dl>'


def settings_of_one(run: dict[str, Any]) -> str:
    told = [key for key in run["settings"] if key.endswith(OF_OPTIONS)]
    resolved = [key for key in run["settings"] if not key.endswith(OF_OPTIONS)]
    of_config = "<h3>config.json, every key resolved</h3>" + settings_list(run, resolved) if resolved else ""
    return "<h3>Options of zero train</h3>" + settings_list(run, told) + of_config


def settings_of_several(runs: list[dict[str, Any]]) -> str:
    keys = keys_of(runs, "settings")
    differing = [key for key in keys if len({text_of(run, "settings", key) for run in runs}) > 1]
    same = f"<p>{len(keys) - len(differing)} of {len(keys)} keys are the same in all runs.</p>"
    first = settings_table(runs, "settings", differing, marks=False) if differing else ""
    whole = settings_table(runs, "settings", keys, marks=True)
    return same + first + f"<details><summary>All {len(keys)} keys</summary>{whole}</details>"


def settings_section(data: dict[str, Any]) -> str:
    runs = data["runs"]
    lack = [run for run in runs if not run["has_config"]]
    without = missing(runs, lack, "no config.json", "Below are only the options of zero train.")
    return without + (settings_of_one(runs[0]) if len(runs) == 1 else settings_of_several(runs))


def environment_section(data: dict[str, Any]) -> str:
    runs = [run for run in data["runs"] if run["has_environment"]]
    lack = [run for run in data["runs"] if not run["has_environment"]]
    without = missing(data["runs"], lack, "no environment.json", "zero train writes it when it starts.")
    if not runs:
        return without
    return settings_table(runs, "environment", keys_of(runs, "environment"), marks=len(runs) > 1) + without
