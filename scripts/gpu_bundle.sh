#!/usr/bin/env bash
# build/gpu-bundle: headers and libraries that a build needs beside libtorch, a compiler, CMake and Ninja, for machines
# with a GPU and no network. scripts/gpu_check.sh there finds them. x86-64, for a glibc of Debian 12 or newer.
#   scripts/gpu_bundle.sh [--peers PYTHON] [LIBNCCL CAPABILITY]
# --peers 3.12: and wheels of transformers and DeepSpeed for that Python, for scripts/gpu_peers.sh
# LIBNCCL CAPABILITY: an NCCL of 2.30 or newer (pip: nvidia-nccl-cu13), to test it with several ranks on a GPU of this
# compute capability (90)
set -euo pipefail
python=
if [ "${1:-}" = --peers ]; then python=${2:?"--peers: want a Python, such as 3.12"}; shift 2; fi
if [ $# = 2 ]; then nccl=$(realpath "$1"); fi
cd "$(dirname "$0")/.."
command -v apt-get >/dev/null || { echo "zerotorch: error: the bundle is made of Debian's packages, on Debian" >&2; exit 1; }
bundle=$PWD/build/gpu-bundle
packages=(libfmt-dev libfmt9 libspdlog-dev libspdlog1.10 nlohmann-json3-dev libcli11-dev libgtest-dev libxxhash-dev
          libxxhash0 liburing-dev liburing2)
rm -rf "$bundle" && mkdir -p "$bundle/packages"
(cd "$bundle/packages" && apt-get download -q "${packages[@]}" >/dev/null)
for package in "$bundle"/packages/*.deb; do dpkg -x "$package" "$bundle"; done
rm -rf "$bundle/packages" "$bundle/usr/share/doc" "$bundle/usr/share/man" "$bundle/usr/src"
if [ -n "$python" ]; then
  scripts/bootstrap.sh peers
  mapfile -t needed < <(build/peers/bin/python - <<'PY'
from importlib.metadata import requires, version
from packaging.requirements import Requirement

wanted, found = ["transformers", "deepspeed"], {"torch"}
while wanted:
    name = wanted.pop().lower()
    if name in found:
        continue
    found.add(name)
    needs = [Requirement(line) for line in requires(name) or []]
    wanted += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
print(*(f"{name}=={version(name)}" for name in sorted(found - {"torch"})), sep="\n")
PY
  )
  for one in "${needed[@]}"; do
    if [[ $one == deepspeed==* ]]; then  # only as source; its operators are compiled where they are used
      DS_BUILD_OPS=0 build/peers/bin/pip wheel -q --no-deps --no-build-isolation "$one" -w "$bundle/wheels"
    else
      build/peers/bin/pip download -q --no-deps --only-binary=:all: --python-version "$python" --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --platform any -d "$bundle/wheels" "$one"
    fi
  done
fi
if [ $# = 2 ]; then
  scripts/one_architecture.py "$nccl" "$2" "$bundle/libnccl.so.2"
  xz -T0 -3 -f "$bundle/libnccl.so.2"
fi
echo "zerotorch: $(du -sh "$bundle" | cut -f1) in build/gpu-bundle; take it along with the sources, and type there:  scripts/gpu_check.sh"
