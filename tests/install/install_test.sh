#!/usr/bin/env bash
# Installs the build into an empty folder and builds a project of somebody else's against it: find_package(zerotorch),
# zero::zero and zero::lm, a module of its own, two ranks started by the installed command line.
set -euo pipefail
build=$1 consumer=$2 cmake=$3 project=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"
if grep -rqE "nlohmann|spdlog|fmt/" "$work/prefix/include"; then
  echo "a public header needs a private dependency"; exit 1
fi
# Whoever removes the clone keeps what was installed.
if [ -n "$(find "$work/prefix" -path '*/zerotorch/libtorch/lib/libtorch_cpu.so')" ]; then
  for file in "$work"/prefix/bin/zero "$work"/prefix/lib*/libzerotorch*.so; do
    elsewhere=$(ldd "$file" | grep -F "$project/" || true)
    if [ -n "$elsewhere" ]; then echo "installed, $file needs the clone: $elsewhere"; exit 1; fi
  done
  if grep -rF "$project/" "$work"/prefix/lib*/cmake; then echo "find_package(zerotorch) needs the clone"; exit 1; fi
  grep -qF "libtorch/lib/libtorch_cpu.so" "$build/install_manifest.txt" || { echo "make uninstall would leave libtorch"; exit 1; }
fi
# The folder of a script comes first where Python looks for modules.
python3 - "$work/prefix/share/zerotorch" << 'EOF'
import pathlib, sys
shadows = [path.name for path in pathlib.Path(sys.argv[1]).glob("*.py") if path.stem in getattr(sys, "stdlib_module_names", ())]
sys.exit(f"installed beside scripts, with the names of Python's own modules: {shadows}" if shadows else 0)
EOF
"$cmake" -S "$consumer" -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Release \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/consumer" -j 1
cd "$work"
timeout 120 "$work/prefix/bin/zero" launch -n 2 -- "$work/consumer/consumer" "$consumer/ds_config.json" | tee "$work/out.txt"
grep -q "rank 0 of 2: loss went down" "$work/out.txt"
timeout 120 "$work/consumer/lm_consumer" | tee "$work/lm.txt"
grep -q "loss is finite; gpt-tiny has" "$work/lm.txt"
# What `make package` does to the files: they look for libraries beside them, and in no folder of this machine.
mkdir "$work/package" && mv "$work/prefix" "$work/package/usr"
"$cmake" -D CPACK_TEMPORARY_INSTALL_DIRECTORY="$work/package" -P "$project/cmake/package_rpath.cmake"
for file in "$work"/package/usr/bin/zero "$work"/package/usr/lib*/libzerotorch*.so; do
  elsewhere=$(readelf -d "$file" | sed -n 's/.*R\(UN\)\?PATH.*\[\(.*\)\]/\2/p' | tr ':' '\n' | grep -v '^\$ORIGIN' || true)
  if [ -n "$elsewhere" ]; then echo "packaged, $file looks for libraries in $elsewhere"; exit 1; fi
done
