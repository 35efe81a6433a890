#!/usr/bin/env python3
"""The library shows what its public headers declare, and nothing else. Usage: exports.py <source dir> <libzerotorch.so>"""
import pathlib
import re
import subprocess
import sys

ROOT, LIBRARY = pathlib.Path(sys.argv[1]), sys.argv[2]
MODELS = {"models.h", "data.h", "causal_lm.h", "lora.h", "loss.h"}  # of the library zero::models
# Some linkers show functions of the standard library, too.
ALLOWED = re.compile(r"^(std::|zero::(base::check_failed|plan::|checkpoint::|detail::|[A-Z]|[a-z_0-9]+(\[abi:\w+\])?\())")


def declared():
    """Free functions of the headers, with their namespace."""
    for header in sorted((ROOT / "include/zero").glob("*.h")):
        if header.name in MODELS:
            continue
        space = []
        before = ""
        for line in header.read_text().splitlines():
            if opened := re.match(r"namespace ([a-z:]+) \{", line):
                space.append(opened.group(1))
            elif re.match(r"\}", line) and before.endswith(";") and space and (
                    line.startswith("}  // namespace") or space[-1].startswith("torch")):
                space.pop()
            found = re.match(r"[A-Za-z][\w:<>&*, ]*[ &*]([a-z_0-9]+)\(", line)
            inline = re.match(r"(constexpr|inline|using|concept|template|auto|namespace|class|struct)\b", line)
            if found and not inline and not before.startswith(("template", "  requires")):
                yield "::".join(space) + "::" + found.group(1), header.name
            before = line


shown = subprocess.run(["nm", "-DC", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
names = [line.split(maxsplit=2)[2] for line in shown.splitlines() if len(line.split(maxsplit=2)) == 3]
functions = {re.sub(r"\[abi:\w+\]", "", name.split("(")[0]) for name in names}
wanted = dict(declared())
problems = [f"include/zero/{header} declares {name}(), which {LIBRARY} does not show: add it to src/exports.map"
            for name, header in wanted.items() if name not in functions]
for name in names:
    bare = re.sub(r"^(vtable|typeinfo|typeinfo name) for ", "", name)
    if not ALLOWED.match(bare):
        problems.append(f"{LIBRARY} shows {name}, which no public header declares")
if len(wanted) < 40:
    problems.append(f"only {len(wanted)} functions were found in the headers: are they still read?")
for problem in problems[:20]:
    print(problem)
print(f"{len(wanted)} functions declared, {len(names)} symbols shown, {len(problems)} problems")
sys.exit(1 if problems else 0)
