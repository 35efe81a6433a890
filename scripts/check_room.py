#!/usr/bin/env python3
"""Builds and runs the tests of one room of src: unit tests that include its headers or are named after it.
Usage: check_room.py ROOM BUILD_FOLDER JOBS"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_SECONDS = 600
# Of rooms that tests reach through others.
ALSO = {
    "engine": ["engine_test"],
    "launcher": ["launcher_test"],
    "lm": ["data_test", "models_test"],
    "monitor": ["training_run_test"],
    "observe": ["trace_test", "flops_profiler_test"],
    "products": ["cpu_products_test"],
    "train": ["training_run_test"],
}


def tests():
    """(name, labels, sources) of every test that CMake knows."""
    text = re.sub(r"#.*", "", (ROOT / "tests/CMakeLists.txt").read_text())
    for name, rest in re.findall(r"zero_add_test\((\w+)\s([^)]*)\)", text):
        words = rest.split()
        labels = words[words.index("LABELS") + 1] if "LABELS" in words else ""
        yield name, labels, [ROOT / "tests" / word for word in words if word.endswith(".cpp")]


def is_of(room, name, sources):
    return any(path.startswith(room + "_") for path in (name, *(source.stem for source in sources))) or any(
        f'#include "{room}/' in source.read_text() for source in sources)


def main():
    room, build, jobs = sys.argv[1:]
    rooms = [*sorted(path.name for path in (ROOT / "src").iterdir() if path.is_dir()), "lm"]
    if room not in rooms:
        sys.exit(f"make check: ROOM is one of {', '.join(rooms)}")
    wanted = [name for name, labels, sources in tests()
              if "unit" in labels and is_of(room, name, [source for source in sources if source.exists()])]
    wanted += ALSO.get(room, [])
    print(f"zerotorch: {room}: {' '.join(wanted)}", flush=True)
    subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", *wanted], cwd=ROOT, check=True)
    result = subprocess.run(["ctest", "--test-dir", build, "-j", jobs, "--output-on-failure", "--timeout",
                             str(MOST_SECONDS), "-R", f"^({'|'.join(wanted)})$"], cwd=ROOT)
    sys.exit(result.returncode)


if __name__ == "__main__":
    main()
