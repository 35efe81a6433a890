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
compile() { "$compiler" -std=c++20 -fsyntax-only "${flags[@]}" -DCASE="$1" "$source" 2>&1; }

if ! said=$(compile 0); then
  echo "a shared_ptr does not compile: $said"
  exit 1
fi
for number in 1 2 3 4; do
  if said=$(compile "$number"); then
    echo "case $number compiles"
    exit 1
  fi
  if ! grep -qF "$sentence" <<< "$said"; then
    echo "case $number fails without the sentence '$sentence': $said"
    exit 1
  fi
done
