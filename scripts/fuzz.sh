#!/usr/bin/env bash
# libFuzzer on everything that reads what others may have written: manifests, safetensors headers, whole checkpoints,
# configurations, pickles of torch.save. With the address and undefined-behaviour sanitizers, in bounded memory.
#   FUZZ_SECONDS=60          for each of them
#   FUZZ_TARGETS="load ..."  which
# What is found lies in build/fuzz/found; once mended it belongs into tests/fuzz/regressions/<target>.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/fuzz
seconds=${FUZZ_SECONDS:-60}
targets=${FUZZ_TARGETS:-manifest safetensors load weights config pickle}

scripts/bootstrap.sh fuzz
mkdir -p "$build/found"
cmake --preset fuzz >"$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" -j "${JOBS:-1}"
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=0
failed=0
for target in $targets; do
  corpus=$build/corpus/$target
  known=tests/fuzz/regressions/$target
  mkdir -p "$corpus"
  log=$build/$target.log
  if ZERO_FUZZ_CORPUS=$corpus "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 \
       -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=32768 -print_final_stats=1 \
       -artifact_prefix="$build/found/$target-" "$corpus" $([ -d "$known" ] && echo "$known") >"$log" 2>&1; then
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions, $(find "$corpus" -type f | wc -l)" \
         "inputs in the corpus, at most $(sed -n 's/^stat::peak_rss_mb: *//p' "$log") MB: nothing found"
  else
    failed=1
    echo "$target: FOUND SOMETHING, see $log"
    grep -m 5 -E 'ERROR|SUMMARY|runtime error|fuzz: not so|what\(\)|Test unit written' "$log" || true
  fi
done
exit $failed
