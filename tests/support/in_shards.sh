#!/bin/bash
# The cases of a test program that waits more than it works, in processes side by side.
# Usage: in_shards.sh <processes> <program of GoogleTest> [arguments]
set -u
count=$1
shift
outputs=$(mktemp -d)
pids=()
trap '((${#pids[@]} == 0)) || kill "${pids[@]}" 2> /dev/null; rm -rf "$outputs"' EXIT
trap 'exit 1' TERM INT
for ((i = 0; i < count; ++i)); do
  GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i "$@" > "$outputs/$i" 2>&1 &
  pids+=($!)
done
failed=0
for ((i = 0; i < count; ++i)); do
  wait "${pids[i]}" || failed=1
  cat "$outputs/$i"
done
pids=()
exit $failed
