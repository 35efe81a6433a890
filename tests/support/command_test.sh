# For tests of a command, sourced first: a folder of its own, and what fails is counted.
#   source "$(dirname "$0")/../support/command_test.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', want '$3'"; }  # what it is, got, wanted
# Of a JSON file, an expression of j.
value() { python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }
# text.py: text for a tiny model.
write_text() { for i in $(seq 1 3000); do echo "def f$i(x): return x + $i"; done > text.py; }
shm_files() { find /dev/shm -maxdepth 1 -name 'zero*' 2>/dev/null | sort; }
shm_before=$(shm_files)
# Made since this test began and mapped by nobody: those of tests that run beside this one are in use.
shm_left() {
  local name
  for name in $(comm -13 <(echo "$shm_before") <(shm_files)); do
    grep -qsF "$name" /proc/[0-9]*/maps || { [ ! -e "$name" ] || echo "$name"; }
  done
}
# A segment is nobody's for the moment between its creation and the first mapping.
expect_nothing_in_shm() {
  for _ in $(seq 1 100); do [ -z "$(shm_left)" ] && return; sleep 0.1; done
  fail "left in /dev/shm: $(shm_left)"
}
unset ZERO_DATA RANK WORLD_SIZE ZERO_RANK ZERO_WORLD_SIZE
export OMP_NUM_THREADS=1
