#!/usr/bin/env python3
"""Every C++ file is as .clang-format lays it out. Usage: format.py <source dir> [--fix]

Takes clang-format 14, whose versions do not agree with each other, from the Python environments of the build or from
PATH. Exit status: 0, 1 when a file differs, 77 when there is no clang-format 14.
"""
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
FOLDERS = ("apps", "benchmarks", "examples", "include", "lm", "python", "src", "tests")
VERSION = "14."


def find_tool():
    candidates = [ROOT / ".venv/bin/clang-format", ROOT / "build/python/bin/clang-format",
                  shutil.which("clang-format-14"), shutil.which("clang-format")]
    for path in candidates:
        if not path or not pathlib.Path(path).exists():
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
        if (found := re.search(r"version ([0-9.]+)", said)) and found.group(1).startswith(VERSION):
            return str(path)
    return None


tool = find_tool()
if tool is None:
    print("skipped: no clang-format 14 (pip install clang-format==14.0.6)")
    sys.exit(77)
files = sorted(str(path) for folder in FOLDERS for path in (ROOT / folder).rglob("*")
               if path.suffix in (".cpp", ".h", ".inc"))
if "--fix" in sys.argv:
    subprocess.run([tool, "--style=file", "-i", *files], check=True, timeout=600)
    sys.exit(0)
said = subprocess.run([tool, "--style=file", "--dry-run", *files], capture_output=True, text=True, timeout=600,
                      check=True).stderr
different = sorted({line.split(":")[0] for line in said.splitlines() if "-Wclang-format-violations" in line})
for path in different:
    print(f"{pathlib.Path(path).relative_to(ROOT)}: not as .clang-format lays it out")
print(f"{len(files)} files, {len(different)} to lay out" + (": make format" if different else ""))
sys.exit(1 if different else 0)
