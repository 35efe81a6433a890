#!/usr/bin/env bash
# Runs a file of pytest by the Python that the package was built for. Exit code 77, "skipped", where it has no pytest.
# Usage: run_pytest.sh <source folder> <file> [options]
set -u
root=$1; shift
python=$root/.venv/bin/python
# Where `make test-libraries` has put what these train through.
case $(basename "$1") in test_hf_* | test_lightning*)
  if [ -x "$root/build/libraries/bin/python" ]; then python=$root/build/libraries/bin/python; fi ;;
esac
python=${ZERO_TEST_PYTHON:-$python}
if ! "$python" -c 'import pytest, numpy, safetensors' 2>/dev/null; then
  echo "SKIPPED: $python has no pytest, numpy and safetensors; \`make test\` installs them where pip has an index"
  exit 77
fi
"$python" -m pytest -q -p no:cacheprovider "$@"
code=$?
# 5: all of the file is skipped, as where the library that it is about is not installed.
if [ "$code" -eq 5 ]; then exit 77; fi
exit "$code"
