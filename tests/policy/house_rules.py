#!/usr/bin/env python3
"""The rules of the house that a machine can check. Usage: house_rules.py <source dir>"""
import ast
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])

# Which room may include which, besides base. Each includes only rooms above it: arrows run one way. src/README.md has
# the same table. Public headers may be included everywhere.
ROOMS = {
    "base": set(),
    "config": set(),
    "layout": set(),
    "optim": set(),
    "io": set(),
    "comm": set(),
    "launcher": {"comm"},
    "intercept": set(),
    "device": {"comm"},
    "storage": {"layout", "comm", "device"},
    "offload": {"layout", "io", "comm", "device", "storage"},
    "products": {"optim"},
    "sharding": {"config", "layout", "optim", "comm", "intercept", "device", "storage", "offload"},
    "plan": {"config", "layout", "optim", "sharding"},
    "checkpoint": {"io", "comm"},
    "monitor": set(),
    "observe": {"io", "comm", "intercept", "storage", "sharding", "monitor"},
    "engine": {"config", "layout", "optim", "io", "comm", "intercept", "device",
               "storage", "offload", "sharding", "checkpoint", "observe"},
    "persistence": {"io", "intercept", "storage", "checkpoint", "engine"},
    "train": {"io", "device", "storage", "monitor", "engine"},
}
# The rooms of the language-model toolkit, by the same rule. Of the core they see the public headers only.
LM_ROOMS = {"data": set(), "evaluation": {"data"}, "models": {"data"}}
NO_TORCH = {"base", "config", "layout", "io", "comm", "launcher", "checkpoint", "monitor", "plan"}
MAX_LINES = 800
problems = []


def problem(path, line, text):
    problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")


def sources(*folders, suffixes=(".h", ".cpp", ".inc")):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1), match.group(2)


def check_layers():
    for path in sources("src"):
        room = path.relative_to(ROOT / "src").parts[0]
        if room not in ROOMS:
            problem(path, 1, f"room '{room}' is not in the list of rooms")
            continue
        without_torch = room in NO_TORCH or path.is_relative_to(ROOT / "src/sharding/plan")
        for number, kind, name in includes(path):
            if kind == "<":
                if without_torch and name.split("/")[0] in ("ATen", "c10", "torch"):
                    problem(path, number, f"room '{room}' knows nothing of libtorch, but includes {name}")
                continue
            if (ROOT / "include" / name).exists():
                continue  # the public API
            other = name.split("/")[0]
            if not (ROOT / "src" / name).exists():
                problem(path, number, f"include \"{name}\" is not found from src/")
            elif other not in ROOMS[room] | {room, "base"}:
                problem(path, number, f"room '{room}' may not include room '{other}'")
    for path in sources("include", "lm/include"):
        for number, kind, name in includes(path):
            if kind == '"' and not (ROOT / "include" / name).exists() and not path.is_relative_to(ROOT / "lm"):
                problem(path, number, f"a public header includes the private \"{name}\"")
            if name in ("torch/torch.h", "ATen/ATen.h", "torch/all.h"):
                problem(path, number, f"{name} costs every user seconds; include what is used")


def check_namespaces():
    """A room's namespace has its name; names of others are declared where these may be used."""
    for path in sources("src"):
        room = path.relative_to(ROOT / "src").parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r"namespace zero::(\w+)", line)
            if match and match.group(1) in ROOMS and match.group(1) not in ROOMS[room] | {room, "base"}:
                problem(path, number, f"namespace zero::{match.group(1)} in the room '{room}'")


def check_the_toolkit_is_a_guest():
    """lm/ uses the public API of the core, its own public headers, and its rooms; the core knows nothing of it."""
    for path in sources("lm"):
        part = path.relative_to(ROOT / "lm").parts[0]
        for number, kind, name in includes(path):
            if kind == "<":
                if part == "data" and name.split("/")[0] in ("ATen", "c10", "torch"):
                    problem(path, number, f"lm/data knows nothing of libtorch, but includes {name}")
                if (ROOT / "src" / name).exists() or (ROOT / "include" / name).exists():
                    problem(path, number, f"headers of ours are included with quotes, not <{name}>")
                continue
            if (ROOT / "include" / name).exists() or (ROOT / "lm/include" / name).exists():
                continue
            if part == "tests" and (ROOT / "tests/support" / pathlib.Path(name).name).exists():
                continue
            other = name.split("/")[0]
            if not (ROOT / "lm" / name).exists():
                problem(path, number, f"lm/ includes public headers and its own, not {name}")
            elif part == "include":
                problem(path, number, f"a public header includes the private \"{name}\"")
            elif part != "tests" and other not in LM_ROOMS[part] | {part}:
                problem(path, number, f"room '{part}' may not include room '{other}'")
    for path in sources("src", "include"):
        for number, _, name in includes(path):
            if name.startswith("zero/lm/"):
                problem(path, number, f"the core knows nothing of the toolkit, but includes {name}")


def check_rooms_are_in_order():
    """Arrows run one way, and the table of src/README.md is this one."""
    path = ROOT / "tests/policy/house_rules.py"
    above = set()
    for room, uses in ROOMS.items():
        if not uses <= above:
            problem(path, 1, f"room '{room}' uses {', '.join(sorted(uses - above))}, which stands below it")
        above.add(room)
    readme = ROOT / "src/README.md"
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", readme.read_text().split("\n## ")[0], re.M)
    if [room for room, _ in rows] != list(ROOMS):
        problem(readme, 1, f"the rooms in their order are {', '.join(ROOMS)}")
    for room, uses in rows:
        listed = set() if uses == "-" else set(uses.split(", "))
        if listed != ROOMS.get(room, set()):
            problem(readme, 1, f"room '{room}' may use {', '.join(sorted(ROOMS.get(room, set()))) or '-'}")


def check_the_picture_of_rooms():
    done = subprocess.run([sys.executable, ROOT / "scripts/draw_rooms.py", "--check"], capture_output=True, text=True)
    if done.returncode != 0:
        problem(ROOT / "docs/images/rooms.svg", 1, (done.stdout + done.stderr).strip())


def check_where_new_things_go():
    """The files that src/README.md names are there, and a new thing touches at most as many as the table promises."""
    readme = ROOT / "src/README.md"
    table = readme.read_text().split("## Where something new goes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|`]+) \| (\d) \| ([^|]+) \| ([^|]+) \|$", table, re.M)
    if len(rows) < 15:
        problem(readme, 1, f"the table of new things has {len(rows)} rows that can be read")
    for what, count, files, shown_by in rows:
        named = re.findall(r"`((?:[\w-]+/)+[\w*]+\.\w+)`", files)
        for path in named + re.findall(r"`((?:[\w-]+/)+[\w*]+\.\w+)`", shown_by):
            if not any(any((ROOT / base).glob(path)) for base in (".", "src")):
                problem(readme, 1, f"'{what}' names {path}, which does not exist")
        touched = len(set(named)) + files.count("a new file")
        if touched != int(count):
            problem(readme, 1, f"'{what}' says {count} files, and names {touched}")
        if len(set(named)) > 4:
            problem(readme, 1, f"'{what}' changes {len(set(named))} files: more than 4")


def check_programs_use_the_public_api():
    for folder in ("apps", "examples"):
        for path in sources(folder):
            for number, kind, name in includes(path):
                public = (ROOT / "include" / name).exists() or (ROOT / "lm/include" / name).exists() or \
                    (path.parent / name).exists() or (ROOT / "apps/zero" / name).exists() and folder == "apps"
                if kind == '"' and not public or kind == "<" and (ROOT / "src" / name).exists() and not public:
                    problem(path, number, f"a program includes public headers and its own, not {name}")


def check_folders_are_small():
    for folder, most in (("apps/zero", 15), ("src", 30), ("lm", 30)):
        for path in sorted({path.parent for path in sources(folder, suffixes=(".cpp",))}):
            count = len(list(path.glob("*.cpp")))
            if count > most:
                problem(path, 1, f"{count} sources; a folder has at most {most}")


def check_library_is_quiet():
    forbidden = re.compile(r"std::cout|\bprintf\s*\(|\bputs\s*\(|std::abort|\babort\s*\(\s*\)|\bexit\s*\(")
    for path in sources("src", *(f"lm/{room}" for room in LM_ROOMS)):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = re.sub(r'"(\\.|[^"\\])*"', '""', line.split("//")[0])
            if forbidden.search(code) and "snprintf" not in code:
                problem(path, number, f"the library neither prints nor exits: {line.strip()}")


def check_files_go_through_io():
    """So that a test can put a crash or a full disk in their place."""
    # Archives of torch.save are read by libtorch itself, or mapped.
    allowed = {"src/persistence/weight_source.cpp"}
    for path in sources("src/checkpoint", "src/engine", "src/train"):
        for number, kind, name in includes(path):
            if name in ("fstream", "cstdio", "stdio.h", "fcntl.h", "sys/stat.h") and \
                    str(path.relative_to(ROOT)) not in allowed:
                problem(path, number, f"<{name}>: files of checkpoints go through the io room")


def check_walls():
    """What only one room knows."""
    walls = (
        ("src/sharding", "", r"\bis_cpu\s*\(", "the device is chosen once: ShardedModel::home and ShardedModel::passes"),
        ("src", "optim", r"\bexp_avg", "states are named by the rule in src/optim"),
        ("src", "config", r"bf16\.enabled(?! = )", "Config::param_dtype() says what parameters are in"),
        ("src", "config", r"\.overlap_comm\b", "ZeroOptimization::overlaps_comm() knows the default"),
    )
    for folder, knows, pattern, why in walls:
        for path in sources(folder):
            if path.relative_to(ROOT / "src").parts[0] == knows:
                continue
            if path.name == "client_optimizer.cpp":
                continue  # libtorch's own optimizers, by libtorch's names
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(pattern, line.split("//")[0]):
                    problem(path, number, why)


def check_files():
    for path in sources("src", "include", "lm", "apps", "tests", "benchmarks", "examples"):
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            problem(path, len(lines), f"longer than {MAX_LINES} lines")
        for number, line in enumerate(lines, 1):
            if not line.isascii():
                problem(path, number, "not ASCII")
            if len(line) > 120:
                problem(path, number, f"{len(line)} columns")
        if path.suffix == ".h" and "#pragma once" not in text:
            problem(path, 1, "no #pragma once")


def check_tests_are_registered():
    for path in sources("tests", "lm/tests", suffixes=("_test.cpp", ".cpp")):
        folder = ROOT / ("lm/tests" if path.is_relative_to(ROOT / "lm") else "tests")
        registered = (folder / "CMakeLists.txt").read_text()
        name = str(path.relative_to(folder))
        if name.endswith("_test.cpp") and name not in registered and path.name not in registered:
            problem(path, 1, f"not registered in {folder.relative_to(ROOT)}/CMakeLists.txt")
        if name.endswith("_test.cpp") and not re.search(rf"^namespace zero(::\w+)*::{path.stem} {{$", path.read_text(), re.M):
            problem(path, 1, f"its namespace does not end in ::{path.stem}; it may be compiled with other files of tests")


def check_flags_are_documented():
    """Options are rows of tables: {"-n,--ranks", ...} or X(..., "-n,--ranks", ...)."""
    documented = "".join(p.read_text() for p in (ROOT / "docs").glob("*.md"))
    found = set()
    for path in sources("apps/zero"):
        if path.name in ("command_line.cpp", "hostfile.cpp", "tokenizer.cpp"):
            continue  # options of other programs
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for names in re.findall(r'(?:\{|, |= )"((?:-\w,)?--[a-z][\w,-]*)"', line):
                long = [name for name in names.split(",") if name.startswith("--")]
                found.update(long)
                if not any(re.search(rf"{name}\b", documented) for name in long):
                    problem(path, number, f"{long[0]} is not in docs/")
    if len(found) < 80:
        problem(ROOT / "apps/zero", 1, f"only {len(found)} options are found: how they are written has changed")


def check_readme_example():
    example = (ROOT / "examples" / "minimal.cpp").read_text().split("// [readme]")[1]
    lines = [line[2:] if line.startswith("  ") else line for line in example.strip("\n").rstrip().splitlines()]
    if "\n".join(lines).strip() not in (ROOT / "README.md").read_text():
        problem(ROOT / "README.md", 1, "the C++ example is not that of examples/minimal.cpp")


STAGES = "only sharding_of_stage() knows what a stage means"


def check_one_place_for_stages():
    for path in sources("src"):
        room = path.relative_to(ROOT / "src").parts[0]
        if room == "config":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bif\s*\(.*\bstage\b", line.split("//")[0]):
                problem(path, number, STAGES)
    # Also outside of an `if`; the bounds of a range (stage >= 0, stage <= 3) mean nothing.
    meaning = re.compile(r"\bstage\s*([=!]=\s*\d|>=?\s*[1-3]|<\s*[1-3]|<=\s*[0-2])|\b\d\s*[=!]=\s*[\w.]*\bstage\b")
    for path in sources("src", "lm", "apps"):
        if path.is_relative_to(ROOT / "src/config") or path == ROOT / "src/layout/sharding.h":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if meaning.search(line.split("//")[0]):
                problem(path, number, STAGES)


# The Python package in two parts: the core, and DeepSpeed's tree of modules over it.
PYTHON_CORE = ("core/", "errors.py", "cpu_products.py", "_build.py", "_version.py")


def check_python_core():
    """It imports nothing of the other part, its modules import each other at their top and one way only."""
    package = ROOT / "python/zerotorch"
    uses = {}
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        if not name.startswith(PYTHON_CORE):
            continue
        tree = ast.parse(path.read_text())
        at_top = {id(node) for node in tree.body}
        at_top |= {id(node) for block in tree.body if isinstance(block, ast.If) for node in block.body}
        uses[name] = set()
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            if isinstance(node, ast.ImportFrom):
                if node.level:
                    problem(path, node.lineno, "modules of the core import by full names")
                named = [f"{node.module}.{one.name}" for one in node.names]
            else:
                named = [one.name for one in node.names]
            for module in named:
                if module.split(".")[0] != "zerotorch" or module == "zerotorch._C":
                    continue
                parts = module.split(".")[1:]
                files = ["/".join(parts[:end]) + ".py" for end in range(len(parts), 0, -1)]
                file = next((one for one in files if (package / one).exists()), "/".join(parts))
                if not file.startswith(PYTHON_CORE):
                    problem(path, node.lineno, f"the core of the Python package may not import {module}")
                if id(node) not in at_top:
                    problem(path, node.lineno, f"{module} is imported inside a function: cut the circle, or import it above")
                uses[name].add(file)
    left = dict(uses)
    while free := [name for name, used in left.items() if not used & left.keys()]:
        for name in free:
            del left[name]
    if left:
        problem(package / "core", 1, f"a circle of imports among {', '.join(left)}")


def check_mutants_follow_the_code():
    path = ROOT / "tests" / "mutants" / "mutants.json"
    for mutant in json.loads(path.read_text()):
        file = ROOT / mutant["file"]
        count = file.read_text().count(mutant["old"]) if file.exists() else 0
        if count != 1:
            problem(path, 1, f"what {mutant['name']} replaces occurs {count} times in {mutant['file']}")


for check in (check_layers, check_namespaces, check_the_toolkit_is_a_guest, check_rooms_are_in_order,
              check_the_picture_of_rooms, check_where_new_things_go,
              check_programs_use_the_public_api,
              check_folders_are_small, check_library_is_quiet, check_files_go_through_io,
              check_walls, check_files, check_tests_are_registered, check_flags_are_documented, check_readme_example,
              check_one_place_for_stages, check_python_core, check_mutants_follow_the_code):
    check()
print("\n".join(problems) or "the house is in order")
sys.exit(1 if problems else 0)
