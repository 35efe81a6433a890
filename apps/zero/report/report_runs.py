#!/usr/bin/env python3
"""Draws what `zero train` has left in run folders, as one page of HTML that needs nothing else. Needs plotly.

    python report_runs.py --out PAGE.html [--title TEXT] RUN [RUN ...]

A run folder has metrics.jsonl and plan.json; summary.json, config.json, environment.json and trace/rank<N>.json are
used where they are there. The page has its data as JSON, in the element "zerotorch-report": sections.py writes the
tables from it, page.js draws the charts from it. Exit code 2 for what the user can mend.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

# `zero` starts this without its folder among those of modules; and an installed folder is no place to write to.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from json_files import Refused, of_path  # noqa: E402
from page import page_of, plotly_script, write_whole  # noqa: E402
from page_data import data_of  # noqa: E402
from quantities import counted, human_nbytes  # noqa: E402
from run_folders import Run, tell_apart  # noqa: E402


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="zero report", description="Draws runs of `zero train` as one page of HTML.")
    parser.add_argument("--out", type=Path, required=True, help="the page; replaced if it is there")
    parser.add_argument("--title", default="", help="of the page (default: the names of the runs)")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder of zero train")
    return parser.parse_args(arguments)


def warn_of_damage(data: dict[str, Any]) -> None:
    for run in data["runs"]:
        for damaged in run["damaged_traces"]:
            print(f"zero report: warning: {damaged['problem']}: this trace is left out", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        plotly = plotly_script()
        runs = [Run(folder) for folder in options.runs]
        tell_apart(runs)
        data = data_of(runs, options.title)
        nbytes = write_whole(options.out, page_of(data, plotly))
    except (Refused, OSError) as error:
        print(f"zero report: error: {error}", file=sys.stderr)
        return 2
    warn_of_damage(data)
    made = f"{counted(len(runs), 'run', 'runs')}, {human_nbytes(nbytes)}"
    try:
        print(f"{of_path(options.out)}: {made}; open it in a browser", flush=True)
    except OSError as error:
        print(f"zero report: error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        sys.stdout = None  # or its end would be tried again, with a traceback
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
