#!/usr/bin/env bash
# What scripts/gpu_check.sh and scripts/gpu_peers.sh build in build/gpu on a machine with a GPU, with what the system
# lacks from build/gpu-bundle: TARGETs, and the kernels where nvcc is.
#   scripts/gpu_build.sh FOLDER SECONDS PYTHON TARGET...    FOLDER: for the logs; PYTHON: ON or OFF, the package
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1 limit=$2 python=$3
shift 3
bundle=$PWD/build/gpu-bundle
torch=$(python3 -c 'import torch.utils; print(torch.utils.cmake_prefix_path)')
cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$bundle/usr;$torch" \
  -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu -DZERO_WITH_MPI=OFF -DZERO_BUILD_PYTHON="$python" >"$out/configure.log" 2>&1 \
  || { tail -n 30 "$out/configure.log"; exit 1; }
if grep -q "^zerotorch_cuda: " <<<"$(ninja -C build/gpu -t targets all)"; then
  set -- zerotorch_cuda "$@"
else
  echo "zerotorch: no nvcc: the kernels are not built"
fi
timeout "$limit" ninja -C build/gpu "$@" >"$out/build.log" 2>&1 \
  || { grep -E "error|FAILED" "$out/build.log" | head -n 30; exit 1; }
