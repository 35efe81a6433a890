#!/usr/bin/env python3
"""Every C++ snippet of docs/moving_from_libtorch.md is run by a test, word for word, and every message that it
quotes is expected by one. Usage: guide_snippets.py <source dir>"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
GUIDE = ROOT / "docs" / "moving_from_libtorch.md"
TEST = ROOT / "tests" / "dist" / "moving_guide_test.cpp"
COMPILE_TIME = ROOT / "include" / "zero" / "engine.h"
problems = []


def words(lines):
    """The lines without indentation and empty lines at the ends."""
    return "\n".join(line.strip() for line in lines).strip("\n")


def document_snippets():
    snippet, start, kind = None, 0, ""
    for number, line in enumerate(GUIDE.read_text().splitlines(), 1):
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
        problems.append(f"{GUIDE.name}:{start}: the snippet has no end")


def tested_snippets():
    snippets, name = {}, None
    for number, line in enumerate(TEST.read_text().splitlines(), 1):
        opened = re.match(r"\s*// \[guide: (.+)\]$", line)
        if opened:
            if name:
                problems.append(f"{TEST.name}:{number}: '{name}' has no end")
            name = opened.group(1)
            if name in snippets:
                problems.append(f"{TEST.name}:{number}: '{name}' is there twice")
            snippets[name] = []
        elif line.strip() == "// [end]":
            name = None
        elif name:
            snippets[name].append(line)
    if name:
        problems.append(f"{TEST.name}: '{name}' has no end")
    return {name: words(lines) for name, lines in snippets.items()}


tested = tested_snippets()
documented = list(document_snippets())
for start, text in documented:
    if text not in tested.values():
        problems.append(f"{GUIDE.name}:{start}: no test in {TEST.name} runs this snippet as it stands:\n{text}")
for name, text in tested.items():
    if text not in [snippet for _, snippet in documented]:
        problems.append(f"{TEST.name}: snippet '{name}' is not in {GUIDE.name}")

# C++ joins literals that follow each other.
sources = re.sub(r'"\s*\n\s*"', "", TEST.read_text() + COMPILE_TIME.read_text())
messages = [m for line in GUIDE.read_text().splitlines() if line.startswith("| ")
            for m in re.findall(r'\| "([^"]+)"', line)]
for message in messages:
    if message not in sources:
        problems.append(f"{GUIDE.name}: no test expects the message \"{message}\"")
if len(documented) < 20 or len(messages) < 8:
    problems.append(f"only {len(documented)} snippets and {len(messages)} messages found: is the guide still read?")

for text in problems:
    print(text)
print(f"{len(documented)} snippets, {len(messages)} messages, {len(problems)} problems")
sys.exit(1 if problems else 0)
