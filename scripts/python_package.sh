#!/usr/bin/env bash
# Makes the package that was built in <build folder> importable by .venv's Python.
set -euo pipefail
cd "$(dirname "$0")/.."
package=$(realpath "$1/python")
python=.venv/bin/python
if [ ! -d "$package/zerotorch" ] || [ ! -x "$python" ]; then
  echo "zerotorch: error: there is no Python package: it needs the torch wheel in .venv (not TORCH_DIR) and Python's headers" >&2
  exit 1
fi
if ! "$python" -c 'import numpy' 2>/dev/null; then
  "$python" -m pip install -q --disable-pip-version-check --no-deps numpy==2.4.6 2>/dev/null || true
fi
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$package" >"$site/zerotorch-build.pth"
cp python/zerotorch.pth "$site/zerotorch.pth"
"$python" -c 'import zerotorch; from zerotorch import _C; print(f"zerotorch: {zerotorch.__version__} for torch {_C.torch_version} is importable by .venv/bin/python")'
