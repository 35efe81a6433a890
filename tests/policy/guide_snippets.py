#!/usr/bin/env python3
"""Every C++ snippet of the guides is run by a test, word for word though perhaps in other lines, and every message
that docs/moving_from_libtorch.md quotes is expected by one. Usage: guide_snippets.py <source dir>"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
GUIDE = ROOT / "docs" / "moving_from_libtorch.md"
TEST = ROOT / "tests" / "dist" / "moving_guide_test.cpp"
# Which programs run the snippets of which guide.
GUIDES = {
    GUIDE: [TEST],
    ROOT / "docs" / "training_run.md": [ROOT / "examples" / "training_run.cpp",
                                        ROOT / "tests" / "unit" / "training_run_test.cpp"],
    ROOT / "docs" / "mixed_precision.md": [ROOT / "tests" / "dist" / "fp16_test.cpp"],
    ROOT / "docs" / "model_parallel.md": [ROOT / "tests" / "dist" / "model_parallel_test.cpp"],
    ROOT / "docs" / "recompute.md": [ROOT / "tests" / "unit" / "recompute_test.cpp"],
}
COMPILE_TIME = ROOT / "include" / "zero" / "engine.h"
problems = []


def words(lines):
    """The lines without indentation and empty lines at the ends."""
    return "\n".join(line.strip() for line in lines).strip("\n")


def without_spaces(text):
    return "".join(text.split())


def document_snippets(guide):
    snippet, start, kind = None, 0, ""
    for number, line in enumerate(guide.read_text().splitlines(), 1):
        if line.startswith("```"):
            if snippet is None:
                snippet, start, kind = [], number, line[3:].strip()
            else:
                if kind == "cpp":
                    yield start, words(snippet)
                snippet = None
        elif snippet is not None:
            snippet.append(line)
    if snippet is not None:
        problems.append(f"{guide.name}:{start}: the snippet has no end")


def tested_snippets(test):
    snippets, name = {}, None
    for number, line in enumerate(test.read_text().splitlines(), 1):
        opened = re.match(r"\s*// \[guide: (.+)\]$", line)
        if opened:
            if name:
                problems.append(f"{test.name}:{number}: '{name}' has no end")
            name = opened.group(1)
            if name in snippets:
                problems.append(f"{test.name}:{number}: '{name}' is there twice")
            snippets[name] = []
        elif line.strip() == "// [end]":
            name = None
        elif name:
            snippets[name].append(line)
    if name:
        problems.append(f"{test.name}: '{name}' has no end")
    return {name: words(lines) for name, lines in snippets.items()}


count = 0
for guide, tests in GUIDES.items():
    tested = [(test.name, name, text) for test in tests for name, text in tested_snippets(test).items()]
    documented = list(document_snippets(guide))
    count += len(documented)
    for start, text in documented:
        if without_spaces(text) not in [without_spaces(snippet) for _, _, snippet in tested]:
            names = ", ".join(test.name for test in tests)
            problems.append(f"{guide.name}:{start}: no test in {names} runs this snippet as it stands:\n{text}")
    for test, name, text in tested:
        if without_spaces(text) not in [without_spaces(snippet) for _, snippet in documented]:
            problems.append(f"{test}: snippet '{name}' is not in {guide.name}")

# C++ joins literals that follow each other.
sources = re.sub(r'"\s*\n\s*"', "", TEST.read_text() + COMPILE_TIME.read_text())
messages = [m for line in GUIDE.read_text().splitlines() if line.startswith("| ")
            for m in re.findall(r'\| "([^"]+)"', line)]
for message in messages:
    if message not in sources:
        problems.append(f"{GUIDE.name}: no test expects the message \"{message}\"")
if count < 20 or len(messages) < 8:
    problems.append(f"only {count} snippets and {len(messages)} messages found: is the guide still read?")

for text in problems:
    print(text)
print(f"{count} snippets, {len(messages)} messages, {len(problems)} problems")
sys.exit(1 if problems else 0)
