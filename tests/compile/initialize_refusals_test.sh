#!/bin/bash
# initialize_refusals_test.sh compiler include-folder...: modules that the engine cannot own do not compile, and
# the compiler says what to pass.
set -u
compiler=$1
shift
flags=()
for folder in "$@"; do flags+=(-isystem "$folder"); done
source=$(dirname "$0")/initialize_refusals.cpp
sentence='zero::initialize needs a std::shared_ptr to the module'
compile() { "$compiler" -std=c++20 -fsyntax-only "${flags[@]}" "$@" "$source" 2>&1; }

if ! said=$(compile); then
  echo "a shared_ptr does not compile: $said"
  exit 1
fi
said=$(compile -DREFUSED)
for refused in 'ByValue' 'ByReference' 'std::unique_ptr<Unique.*>' 'ByPointer\*'; do
  if ! grep -A3 "\[with Model = $refused\]" <<< "$said" | grep -qF "error: static assertion failed: $sentence"; then
    echo "$refused is not refused with the sentence '$sentence': $said"
    exit 1
  fi
done
