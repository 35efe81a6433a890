#!/usr/bin/env bash
# build/gpu-bundle: headers and libraries that a build needs beside libtorch, a compiler, CMake and Ninja, for machines
# with a GPU and no network. scripts/gpu_check.sh there finds them. x86-64, for a glibc of Debian 12 or newer.
#   scripts/gpu_bundle.sh [LIBNCCL CAPABILITY]   with an NCCL of 2.30 or newer (pip: nvidia-nccl-cu13), to test it with
#                                                several ranks on a GPU of this compute capability (90)
set -euo pipefail
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
if [ $# = 2 ]; then
  scripts/one_architecture.py "$nccl" "$2" "$bundle/libnccl.so.2"
  xz -T0 -3 -f "$bundle/libnccl.so.2"
fi
echo "zerotorch: $(du -sh "$bundle" | cut -f1) in build/gpu-bundle; take it along with the sources, and type there:  scripts/gpu_check.sh"
