#!/usr/bin/env bash
# Does what docs/tutorial.md says, from top to bottom, as a user who has installed the build into ~/.local: writes the files
# that it shows, and runs every block of sh, of which each line must succeed.
# Usage: tutorial_test.sh <build folder> <tutorial> <cmake>
set -euo pipefail
build=$1 tutorial=$2 cmake=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work OMP_NUM_THREADS=1
unset ZERO_DATA RANK WORLD_SIZE ZERO_RANK ZERO_WORLD_SIZE
"$cmake" --install "$build" --prefix "$HOME/.local" >"$work/install.log"
export PATH=$HOME/.local/bin:$PATH
cd "$work"
python3 - "$tutorial" <<'PY'
import pathlib, re, sys
text = pathlib.Path(sys.argv[1]).read_text()
commands = []
for kind, rest, body in re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.M | re.S):
    file = re.fullmatch(r" file=(\S+)", rest)
    if file:
        path = pathlib.Path(file[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    elif kind == "sh":
        commands += body.splitlines()
assert len(commands) >= 15, commands
pathlib.Path("commands.sh").write_text("".join(f"echo {'$ ' + c!r}\n{c}\n" for c in commands))
PY
timeout 280 bash -e commands.sh >out.txt 2>&1 || { cat out.txt; echo "FAILED: a command of the tutorial"; exit 1; }
expect() { grep -qF "$1" out.txt || { cat out.txt; echo "FAILED: nothing printed has '$1'"; exit 1; }; }
expect "model states of a rank in GB"
expect "the same bits in all 4 steps of all 5 modes"
expect "of 20 in both, 20 have the same loss and norm, bit for bit"
expect "goes on"
expect "every byte is as it was written"
expect "model.safetensors"
expect "step 150: loss"
expect "* global_step200"
