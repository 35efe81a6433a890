#!/usr/bin/env python3
"""clang-tidy over the sources of a finished build, with the checks of .clang-tidy.

  scripts/tidy.py [--build build/release] [--jobs N] [path ...]     default: src, apps

Takes clang-tidy from --tool, .venv/bin or PATH (pip install clang-tidy==18.1.8). Files that are compiled more than
once are looked at once; warning flags are GCC's and are left out. Exit status: 0, 1 when there is a finding, 2 when a
file cannot be read by clang.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECONDS_A_FILE = 600


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tool", default=None)
    parser.add_argument("paths", nargs="*", type=pathlib.Path, default=[ROOT / "src", ROOT / "lm", ROOT / "apps"])
    return parser.parse_args()


def commands(build, paths):
    """One entry of the compilation database for each file below `paths`."""
    wanted = [path.resolve() for path in paths]
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = [word for word in shlex.split(entry["command"]) if not re.match("-W|-fno-gnu-unique", word)]
        for file in files_of(pathlib.Path(entry["file"]).resolve()):
            if file.suffix != ".cpp" or not any(file.is_relative_to(path) for path in wanted):
                continue
            command = shlex.join(str(file) if word == entry["file"] else word for word in words)
            found.setdefault(str(file), {"directory": entry["directory"], "file": str(file), "command": command})
    return found


def files_of(file):
    """Of a batch (ZERO_BATCH) the files that it includes."""
    if "batches" not in file.parts:
        return [file]
    return [pathlib.Path(name) for name in re.findall(r'#include "(.*)"', file.read_text())]


def look_at(tool, database, file):
    done = subprocess.run([tool, "--quiet", f"-p={database}", f"--config-file={ROOT / '.clang-tidy'}", file],
                          capture_output=True, text=True, timeout=SECONDS_A_FILE, check=False)
    return file, done.stdout, re.findall(r"^.*\berror: .*$", done.stdout + done.stderr, re.M)


def main():
    options = parse_arguments()
    candidates = [options.tool, ROOT / ".venv/bin/clang-tidy", shutil.which("clang-tidy")]
    tool = next((str(path) for path in candidates if path and pathlib.Path(path).exists()), None)
    if tool is None:
        sys.exit("no clang-tidy: pip install clang-tidy==18.1.8")
    found = commands(options.build, options.paths)
    findings, failed = set(), 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        (pathlib.Path(folder) / "compile_commands.json").write_text(json.dumps(list(found.values())))
        for file, text, errors in pool.map(lambda file: look_at(tool, folder, file), sorted(found)):
            failed += bool(errors)
            for error in errors:
                print(f"{file}: {error}", flush=True)
            for line in text.splitlines():
                if re.search(r": warning: .*\[[\w.,-]+\]$", line) and line not in findings:
                    findings.add(line)
                    print(line.replace(f"{ROOT}/", ""), flush=True)
    print(f"{len(found)} files, {len(findings)} findings, {failed} not read")
    sys.exit(2 if failed else 1 if findings else 0)


if __name__ == "__main__":
    main()
