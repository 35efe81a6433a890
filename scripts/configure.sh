#!/usr/bin/env bash
# Configures a CMake preset against TORCH_DIR or the wheel in .venv. Does nothing when that is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
build=build/$preset

fail() { echo "zerotorch: error: $*" >&2; exit 1; }

if [ -n "${TORCH_DIR:-}" ]; then
  prefix=$(realpath "$TORCH_DIR" 2>/dev/null) || fail "TORCH_DIR=$TORCH_DIR does not exist"
else
  prefix=$(.venv/bin/python -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))')
fi
for folder in "$prefix/share/cmake/Torch" "$prefix/torch/share/cmake/Torch" "$prefix"; do
  [ -f "$folder/TorchConfig.cmake" ] && torch_cmake=$folder && break
done
[ -n "${torch_cmake:-}" ] || fail "no TorchConfig.cmake below $prefix; TORCH_DIR is the libtorch folder (it has share/cmake/Torch)"

stamp=$build/.configured
if [ -f "$build/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$torch_cmake" ]; then
  exit 0
fi
echo "zerotorch: configuring $build with libtorch in $prefix"
mkdir -p "$build"
if ! cmake --preset "$preset" -DTorch_DIR="$torch_cmake" >"$build/configure.log" 2>&1; then
  cat "$build/configure.log" >&2
  fail "cmake failed (above)"
fi
grep -E "libtorch|Found MPI:|Could NOT" "$build/configure.log" | sed 's/^-- /  /' || true
echo "$torch_cmake" >"$stamp"
