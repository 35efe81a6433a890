#!/usr/bin/env bash
# A step of transformers' GPT-2 on a GPU under zerotorch, DDP, FSDP2 and DeepSpeed, one rank each, in nine minutes:
#   scripts/gpu_peers.sh [FOLDER [BUILD]]
# FOLDER/gpu_peers.txt has what was said (default: build/gpu). BUILD: what was built for this python3 and its torch
# (default: build/gpu, built here as scripts/gpu_check.sh does). What python3 lacks of transformers and DeepSpeed comes
# from build/gpu-bundle/wheels (scripts/gpu_bundle.sh --peers 3.12, elsewhere). ZERO_PEERS: options of
# benchmarks/python_peers.py in place of those here.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu} build=${2:-build/gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
exec > >(tee "$out/gpu_peers.txt") 2>&1
began=$SECONDS
left() { echo $((${ZERO_GPU_CHECK_SECONDS:-530} - (SECONDS - began))); }

bundle=$PWD/build/gpu-bundle
export LD_LIBRARY_PATH=$bundle/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ $# -lt 2 ]; then
  scripts/gpu_build.sh "$out" "$(left)" ON zerotorch_python || exit 1
fi
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
lacking=()
for wheel in "$bundle"/wheels/*.whl; do
  [ -f "$wheel" ] || continue
  name=$(basename "$wheel" | cut -d- -f1)
  python3 -c "import importlib.metadata, sys; importlib.metadata.version(sys.argv[1])" "$name" 2>/dev/null \
    || lacking+=("$wheel")
done
if [ ${#lacking[@]} -gt 0 ]; then
  python3 -m pip install -q --no-index --no-deps --target "$site" "${lacking[@]}" || exit 1
fi
export PYTHONPATH=$site:$(cd "$build" && pwd)/python
python3 -c 'import torch, transformers, deepspeed, zerotorch; print("torch", torch.__version__, "CUDA", torch.version.cuda,
            "transformers", transformers.__version__, "DeepSpeed", deepspeed.__version__)' || exit 1
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null || echo "zerotorch: no GPU here"
rc=0
runs=("--device cuda --model gpt-152m --batch 16 --steps 10" "--device cuda --model gpt-1b --batch 8 --steps 6")
if [ -n "${ZERO_PEERS:-}" ]; then runs=("$ZERO_PEERS"); fi
for options in "${runs[@]}"; do
  echo "--- python_peers.py $options"
  # shellcheck disable=SC2086
  timeout "$(left)" python3 benchmarks/python_peers.py --ranks 1 --timeout 120 $options \
    --modes zerotorch-2,zerotorch-3,ddp,fsdp2,deepspeed-2,deepspeed-3 || rc=1
done
exit $rc
