#!/bin/bash
# `zero train --device`: a run whose ranks train on an accelerator, here the simulated one, goes on there or elsewhere.
# Usage: train_device_test.sh <zero> <library of the simulated device> <folder of the library that shows all symbols>
#        train_device_test.sh <zero>    on the GPU, which all ranks share
zero=$(realpath "$1")
device=cuda
if [ $# = 3 ]; then
  device=sim
  simulated=$(realpath "$2")
  open=$(realpath "$3")
fi
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=warning
write_text
run="--preset gpt-tiny --data text.py --cache-dir cache --eval-batches 1 --eval-every 0 --dtype fp32 --lr 3e-3"

there() { # any command, where the device is
  if [ $device = cuda ]; then "$zero" "$@"; else LD_PRELOAD=$simulated LD_LIBRARY_PATH=$open "$zero" "$@"; fi
}
on_device() { there train "$@"; }
losses() { python3 -c 'import json,sys
for line in open(sys.argv[1]): print(json.loads(line).get("loss"))' "$1/metrics.jsonl" | grep -v None; }
alike() { # what, two runs: every loss within a thousandth
  python3 - "$1" <(losses "$2") <(losses "$3") <<'END' || fail "$1"
import sys
first, second = ([float(x) for x in open(name)] for name in sys.argv[2:])
assert len(first) == len(second) > 0, (first, second)
assert all(abs(a - b) < 1e-3 * b for a, b in zip(first, second)), (first, second)
END
}

"$zero" train $run -n 2 --steps 8 --run-dir host > out 2>&1 || fail "on the host: $(cat out)"
on_device $run --device $device -n 2 --steps 8 --stage 3 --run-dir there > out 2>&1 || fail "on a device: $(cat out)"
grep -q "threads\? each, on $device; ready" out || fail "it does not say where it trains: $(cat out)"
alike "the losses on a device are those of the host" there host
[ -s there/sample.txt ] || fail "no sample"
expect device "$(value there/summary.json 'j["device"]')" $device
expect "devices that are counted" "$(value there/summary.json 'len([d for d in j["memory"]["device_by_rank"] if d["peak_allocated_nbytes"] > 1e5])')" 2
grep -q "of the device at most" out || fail "it does not say what the device held: $(cat out)"

# With states in host memory, and one rank less; where it was, without being told again; then on the host.
"$zero" train $run -n 2 --steps 8 --print-config > config.json
python3 - <<'END'
import json
config = json.load(open("config.json"))
config["zero_optimization"] = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
json.dump(config, open("offloaded.json", "w"))
END
on_device $run --device $device -n 2 --config offloaded.json --steps 4 --sample-length 0 --run-dir goes_on > out 2>&1 || fail "offloaded: $(cat out)"
on_device --resume goes_on -n 1 --steps 6 > out 2>&1 || fail "it goes on: $(cat out)"
grep -q "on $device:0" out || fail "it goes on elsewhere: $(cat out)"
"$zero" train --resume goes_on --device cpu -n 2 --steps 8 > out 2>&1 || fail "on the host: $(cat out)"
alike "a run may change its device" goes_on host

# What fits the device that all ranks share, or as much of it as is given; and trains the same.
on_device $run --device $device -n 2 --steps 4 --stage 3 --sample-length 0 --fit --run-dir roomy > out 2>&1 || fail "--fit: $(cat out)"
memory='2\.[01]'
if [ $device = cuda ]; then memory='[0-9]+'; fi
tr -s ' \n' '  ' < out | grep -qE 'fit as it is: [0-9.]+ [GM]B of each rank.s GPU, of '$memory'[.0-9]* GB, and' || fail "--fit of what fits: $(cat out)"
on_device $run --device $device -n 2 --steps 4 --stage 1 --sample-length 0 --fit --gpu-memory 602MB --run-dir tight > out 2>&1 || fail "--fit of less: $(cat out)"
grep -q '^fit  *as it is' out && fail "nothing was changed: $(cat out)"
alike "what --fit has changed" tight roomy
on_device $run --device $device -n 2 --steps 4 --gpu-memory 600MB --run-dir small > out 2>&1
expect "exit code of what does not fit a GPU" $? 2
grep -q "on each GPU .* of memory are free" out || fail "it does not say what does not fit: $(cat out)"
on_device $run --device $device -n 2 --steps 4 --fit --gpu-memory 600MB --run-dir small > out 2>&1
expect "exit code where nothing makes it fit" $? 2
[ ! -e small ] || fail "a run's folder of what cannot fit"
"$zero" train $run --gpu-memory 1GB > out 2>&1
expect "exit code of the memory of no GPU" $? 2

# An update that is late: as on the host.
python3 - <<'END'
import json
config = json.load(open("offloaded.json"))
config["zerotorch"] = {**config.get("zerotorch", {}), "update": "delayed"}
json.dump(config, open("late.json", "w"))
END
"$zero" train $run -n 2 --config late.json --steps 6 --sample-length 0 --run-dir late_host > out 2>&1 || fail "late on the host: $(cat out)"
on_device $run --device $device -n 2 --config late.json --steps 6 --sample-length 0 --run-dir late_there > out 2>&1 || fail "late: $(cat out)"
alike "the losses of late updates on a device" late_there late_host

# Stages beside each other.
there compare --preset gpt-tiny --data text.py --cache-dir cache --device $device -n 2 --steps 3 \
  --warmup 1 --rounds 1 --modes compute,stage0,stage3 --no-plot --out compared > out 2>&1 || fail "compare on a device: $(cat out)"
grep -q "libtorch had of a device" out || fail "it does not say whose memory it compares: $(cat out)"
expect "same losses" "$(value compared/compare.json 'j["same_losses"] and j["device"]')" $device
expect "of the device" "$(value compared/compare.json 'all(m["memory"]["peak_device_nbytes"] > 1e5 for m in j["modes"])')" True

# A model in Hugging Face's shapes, which generates from kept keys and values, on documents that do not see each other.
echo '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
  "intermediate_size": 48, "max_position_embeddings": 128, "vocab_size": 256, "tie_word_embeddings": true}' > llama.json
llama="${run/--preset gpt-tiny/--model llama.json --seq 64} --steps 3 --separate-documents --separator 10 -n 2"
"$zero" train $llama --run-dir llama_host > out 2>&1 || fail "llama on the host: $(cat out)"
on_device $llama --device $device --export exported --run-dir llama_there > out 2>&1 || fail "llama on a device: $(cat out)"
alike "llama's losses on a device" llama_there llama_host
[ -s llama_there/sample.txt ] || fail "no sample of llama"

# What they have learnt is the same, wherever it is used.
for what in "generate --length 20 --temperature 0 --json llama_there" "eval --json llama_there" \
            "generate exported --length 20 --temperature 0 --json --tokens 100 101"; do
  "$zero" $what > host.json 2> err || fail "$what on the host: $(cat err)"
  there $what --device $device -n 2 > there.json 2> err ||
    fail "$what on a device: $(cat err)"
  python3 - <<'END' || fail "$what: $(cat host.json there.json)"
import json
host, there = (json.load(open(name)) for name in ("host.json", "there.json"))
if "loss" in host:
    assert abs(host["loss"] - there["loss"]) < 1e-3 * host["loss"]
else:
    del host["seconds"], there["seconds"]
    assert host == there and len(str(host)) > 100
END
done

# Weights to begin with, and adapters: drawn alike.
adapters="--init-from exported --lora 4 ${llama#--model llama.json}"
"$zero" train $adapters --run-dir lora_host > out 2>&1 || fail "adapters on the host: $(cat out)"
on_device $adapters --device $device --export lora_exported --run-dir lora_there > out 2>&1 || fail "adapters on a device: $(cat out)"
alike "the losses of adapters on a device" lora_there lora_host
[ -s lora_exported/adapter_model.safetensors ] || fail "no adapters"

refused() { # part of the message, options
  local want=$1; shift
  timeout 60 "$zero" train $run --steps 2 --run-dir refused "$@" > out 2> err
  expect "exit code of '$*'" $? 2
  grep -qF -- "$want" err || fail "'$*' says '$(cat err)', want '$want'"
  [ -e refused ] && fail "'$*' leaves a run folder"
}
refused "want cpu, cuda or another backend" --device gpu
[ $device = cuda ] && { [ "$failures" = 0 ] && echo "zero train on a GPU: all well"; exit $((failures > 0)); }
refused "want cpu, cuda or another backend" --device sim
LD_PRELOAD=$simulated LD_LIBRARY_PATH=$open refused "--device sim:3: libtorch finds 1 such device" --device sim:3
LD_PRELOAD=$simulated LD_LIBRARY_PATH=$open refused "on this host (2 ranks, stage 3) and 1.07 GB of memory are free" --device $device --memory 1GiB
refused "want cpu, cuda or another backend" --device meta
if [ ! -e /dev/nvidia0 ]; then refused "--device cuda" --device cuda; fi

[ "$failures" = 0 ] && echo "zero train on a device: all well"
exit $((failures > 0))
