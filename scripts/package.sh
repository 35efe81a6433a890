#!/usr/bin/env bash
# Builds dist/zerotorch_*.deb from a release build, for the system this is, and says how to make a container of it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
command -v dpkg-shlibdeps >/dev/null || { echo "zerotorch: error: a .deb is made with dpkg-dev; type:  sudo apt-get install dpkg-dev" >&2; exit 1; }
mkdir -p dist
cmake -DZERO_PACKAGE=ON "$build" >"$build/package.log" 2>&1 || { cat "$build/package.log" >&2; exit 1; }
rm -f dist/zerotorch_*.deb
echo "zerotorch: packing (libtorch is 0.4 GB; a few minutes)"
cpack --config "$build/CPackConfig.cmake" -B "$PWD/dist" >>"$build/package.log" 2>&1 || { tail -n 30 "$build/package.log" >&2; exit 1; }
rm -rf dist/_CPack_Packages
ls -lh dist/zerotorch_*.deb
echo "zerotorch: sudo apt-get install ./$(ls dist/zerotorch_*.deb)        installs it
zerotorch: docker build -t zerotorch -f packaging/Containerfile dist   makes a container (podman and buildah do as well)"
