#!/usr/bin/env python3
"""Each library shows what its public headers declare, and nothing else.
Usage: exports.py <source dir> <libzerotorch.so> <libzerotorch_lm.so>"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
# Some linkers show functions of the standard library, too.
FUNCTION = r"[A-Z]|[a-z_0-9]+(\[abi:\w+\])?\("
# Library, headers, list of symbols, symbols, and how many functions there are at least.
LIBRARIES = (
    (sys.argv[2], "include/zero", "src/exports.map",
     re.compile(rf"^(std::|zero::(plan::|checkpoint::|detail::|{FUNCTION}))"), 40),
    (sys.argv[3], "lm/include/zero/lm", "lm/exports.map", re.compile(rf"^(std::|zero::(models::)?({FUNCTION}))"), 25),
)


def declared(folder):
    """Free functions of the headers, with their namespace."""
    for header in sorted((ROOT / folder).glob("*.h")):
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


count = shown_count = 0
problems = []
for library, folder, exports, allowed, fewest in LIBRARIES:
    shown = subprocess.run(["nm", "-DC", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = [line.split(maxsplit=2)[2] for line in shown.splitlines() if len(line.split(maxsplit=2)) == 3]
    functions = {re.sub(r"\[abi:\w+\]", "", name.split("(")[0]) for name in names}
    wanted = dict(declared(folder))
    problems += [f"{folder}/{header} declares {name}(), which {library} does not show: add it to {exports}"
                 for name, header in wanted.items() if name not in functions]
    for name in names:
        bare = re.sub(r"^(vtable|typeinfo|typeinfo name) for ", "", name)
        if not allowed.match(bare):
            problems.append(f"{library} shows {name}, which no public header declares")
    if len(wanted) < fewest:
        problems.append(f"only {len(wanted)} functions were found in {folder}: is it still read?")
    count += len(wanted)
    shown_count += len(names)
for problem in problems[:20]:
    print(problem)
print(f"{count} functions declared, {shown_count} symbols shown, {len(problems)} problems")
sys.exit(1 if problems else 0)
