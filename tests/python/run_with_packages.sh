#!/usr/bin/env bash
# Runs a Python test with numpy and safetensors: of ZERO_TEST_PYTHON, of .venv, or of the small environment that
# scripts/bootstrap.sh makes when libtorch comes from elsewhere. Exit code 77, "skipped", where there is none.
# Usage: run_with_packages.sh <source folder> <script> <arguments...>
set -u
root=$1; shift
for python in "${ZERO_TEST_PYTHON:-}" "$root/.venv/bin/python" "$root/build/python/bin/python"; do
  if [ -x "$python" ] && "$python" -c 'import numpy, safetensors' 2>/dev/null; then
    exec "$python" "$@"
  fi
done
echo "SKIPPED: no Python with numpy and safetensors; \`make test\` installs them where pip has an index, and
ZERO_TEST_PYTHON=/path/to/python names another one"
exit 77
