#!/usr/bin/env bash
# On a machine with a GPU: builds what trains a module there, tests it, measures it, within nine minutes, without network.
#   scripts/gpu_check.sh [FOLDER]    FOLDER/gpu_check.txt has all that was said, FOLDER/gpu_step.jsonl a line for each
#                                    mode, FOLDER/gpu_kernels.jsonl one for each kernel
#   scripts/gpu_check.sh FOLDER BUILD    with what was built in BUILD (tests/, benchmarks/), and not here
# Needs a C++20 compiler, CMake, Ninja, a python3 with a CUDA build of torch; of the rest, what the system lacks comes
# from build/gpu-bundle (make gpu-bundle, elsewhere). Exit code 1 when a test fails.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
exec > >(tee "$out/gpu_check.txt") 2>&1
began=$SECONDS
say() { echo "zerotorch: $*  ($((SECONDS - began)) s)"; }
left() { echo $((${ZERO_GPU_CHECK_SECONDS:-530} - (SECONDS - began))); }
rc=0

nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || say "no GPU here"
python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)' || exit 1
c++ --version | head -n 1
bundle=$PWD/build/gpu-bundle
export LD_LIBRARY_PATH=$bundle/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

build=${2:-}
if [ -z "$build" ]; then
  build=build/gpu
  scripts/gpu_build.sh "$out" "$(left)" OFF \
    accelerator_test simulated_device_test bench_step bench_device_kernels zero || exit 1
  say "built"
fi

# side_by_side SECONDS TEST FILTER...: on the GPU, a process for each filter, all at a time; what each says in the end
side_by_side() {
  local limit=$1 test=$2 filter jobs=() i; shift 2
  for filter; do
    ZERO_TEST_DEVICE=cuda timeout "$limit" "$build/tests/$test" --gtest_brief=1 --gtest_filter="$filter" \
      >"$logs/${#jobs[@]}" 2>&1 &
    jobs+=($!)
  done
  i=0
  for filter; do
    if wait "${jobs[$i]}" && ! grep -q " 0 tests from" "$logs/$i"; then
      echo "passed: $filter"
    else
      rc=1
      echo "FAILED: $filter"
      tail -n 40 "$logs/$i" | cut -c1-600
    fi
    grep -E "^\[  (PASSED|SKIPPED)" "$logs/$i" || true
    i=$((i + 1))
  done
}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=warning CUBLAS_WORKSPACE_CONFIG=:4096:8
if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  timeout 60 $build/tests/simulated_device_test --gtest_brief=1 || rc=1
  timeout 120 $build/tests/accelerator_test --gtest_brief=1 || rc=1
  say "no GPU: nothing was run on one"
  exit $rc
fi
side_by_side 100 simulated_device_test '*Kernels*'
timeout 120 tests/dist/train_device_test.sh $build/apps/zero/zero >"$logs/zero" 2>&1 &
command_line=$!
nccl=()
if [ -f "$bundle/libnccl.so.2.xz" ]; then
  xz -dc "$bundle/libnccl.so.2.xz" >"$logs/libnccl.so.2" || exit 1
  export NCCL_MULTI_RANK_GPU_ENABLE=1 LD_PRELOAD=$logs/libnccl.so.2
  nccl=('*ARankThatFails*:*ByNccl' '*NcclMovesTheSameBits')
fi
side_by_side 150 accelerator_test '*OneCurve' '*EveryOrder*' '*StatesMayBe*' '*WhatAProgram*' \
  '*WhatGoesPast*:*MemoryIsAsPlanned' '*InitializeTakes*:*ASingleRank*:*CheckpointsGo*:*AnOverflow*' 'DeviceTimes.*' \
  "${nccl[@]:-*ARankThatFails*}"
wait $command_line || rc=1
tail -n 20 "$logs/zero" | cut -c1-600
unset LD_PRELOAD
say "tests on the GPU"

# step NAME ARGS...: a line for each mode
step() {
  local name=$1 limit; shift
  limit=$(left)
  if [ "$limit" -lt 20 ]; then say "no time left for: $name"; return; fi
  echo "--- $name"
  timeout "$((limit < 120 ? limit : 120))" $build/benchmarks/step --device cuda --no-pin --steps 5 --warmup 2 "$@" \
    | tee -a "$out/gpu_step.jsonl" || { say "ended: $name"; }
}
rm -f "$out/gpu_step.jsonl"
timeout 60 $build/benchmarks/device_kernels | tee "$out/gpu_kernels.jsonl" || { rc=1; say "ended: kernels"; }
unset OMP_NUM_THREADS
step "152M, one rank" --ranks 1 --batch 16 --modes stage2,stage2-host,stage3-copying-host
step "152M, two ranks on the GPU" --ranks 2 --batch 8 --modes stage2,stage3-copying
step "152M, four ranks on the GPU" --ranks 4 --batch 4 --modes stage3-copying
step "1.0e9, one rank" --ranks 1 --preset gpt-1b --batch 8 --modes stage2,stage3-copying-host
step "1.0e9, two ranks" --ranks 2 --preset gpt-1b --batch 4 --modes stage3-copying
nvidia-smi --query-gpu=memory.used --format=csv,noheader
say "done; exit code $rc"
exit $rc
