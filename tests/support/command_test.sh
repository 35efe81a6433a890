# For tests of a command, sourced first: a folder of its own, and what fails is counted.
#   source "$(dirname "$0")/../support/command_test.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
expect() { [ "$2" = "$3" ] || fail "$1: got '$2', want '$3'"; }  # what it is, got, wanted
shm_files() { find /dev/shm -maxdepth 1 -name 'zero*' 2>/dev/null | sort; }
unset ZERO_DATA RANK WORLD_SIZE ZERO_RANK ZERO_WORLD_SIZE
export OMP_NUM_THREADS=1
