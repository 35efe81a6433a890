#!/bin/bash
# `zero plan` from outside: text, JSON, exit codes, bad input.
# Usage: plan_command_test.sh <path of zero>
set -u
zero=$(realpath "$1")
source=$(realpath "$(dirname "$0")/../..")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1

# plan <exit code> <options>: runs `zero plan` into out and err
plan() {
  local want=$1; shift
  "$zero" plan "$@" > out 2> err
  expect "exit code of 'zero plan $*'" $? "$want"
}
# The words in their order, wherever a line ends; or a row as it is.
says() { grep -qF -- "$1" out || tr -s ' \n' '  ' < out | grep -qF -- "$1" || { fail "no '$1' in:"; cat out err; }; }
# value <expression over j>: of the JSON in out
value() { python3 -c "import json; j = json.load(open('out')); print(($1))"; }

# ---- text ----
plan 0 --preset gpt-152m -n 2 --memory 24GiB --bandwidth 100Gbit/s
says "151,943,168 parameters in 12 layers of width 1024"
says "2 ranks on 1 host, bf16, micro-batch 4 of 256 tokens"
says "MB (10^6 bytes)"
says "master weights"
says " with checkpointing"
says "time at 100 Gbit/s"
says "verdict    stage 0 fits: a host needs"
says "25.77 GB (24.00 GiB)"
expect "standard error" "$(cat err)" ""
expect "columns" "$(grep -c 'stage 0 *stage 1 *stage 2 *stage 3' out)" 4
says "as the paper counts"
expect "lines that 80 columns do not hold" "$(awk 'length > 80' out | grep -vc '^model\|^run\|^activations')" 0
grep -q $'\x1b' out && fail "terminal codes in a file"

plan 3 --preset gpt-152m -n 2 --memory 4GB --stages 0,1 --store copying
says "verdict    stage 1 does not fit"
plan 0 --preset gpt-152m -n 2 --memory 6GB --stages 0,1
says "verdict    stage 1 fits"
plan 3 --parameters 7e9 -n 2 --memory 3GB --stages 3
says "every rank has the whole fp32 module, 28.00 GB"
plan 3 --preset gpt-1b -n 2 --memory 12GiB
says "does not fit"
says "smallest change that fits:"
plan 3 --parameters 7e9 -n 2 --memory 20GB --stages 3
says "             zerotorch.offload_gradients.device \"nvme\""
plan 3 --preset gpt-1b -n 2 --memory 9GiB
says "or without a disk: optimizer.type \"AdamW8bit\""
says "(another curve)"
plan 3 --preset gpt-1b -n 2 --memory 9GiB --json
expect "JSON of what fits in place" "$(value "[j[k]['node_nbytes'] <= 9 * 2**30 for k in ('suggestion', 'suggestion_in_place')]")" "[True, True]"
expect "that is not asked for" "$(value "any('8bit' in c for c in j['suggestion']['changes'])")" False

echo '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": true}}' > once.json
plan 0 --preset gpt-1b -n 2 --memory 1TB --config once.json
says "gradients in place of activations           -      -0."

# ---- the default is this machine ----
plan 0 --preset gpt-tiny
says "verdict    stage 0 fits"

# ---- one stage that is asked for is planned, or refused, as the engine takes it ----
echo '{"train_micro_batch_size_per_gpu": 4, "zerotorch": {"update": "delayed"}, "zero_optimization": {"stage": 2}}' > late.json
plan 0 --preset gpt-tiny --config late.json --stages 0,2
plan 2 --preset gpt-tiny --config late.json --stage 0
grep -qF 'delayed with zero_optimization.stage 0' err || { fail 'no refusal in:'; cat err; }

# ---- a DeepSpeed JSON: its stage is judged, the rest is beside it ----
echo '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}' > ds.json
plan 0 --preset gpt-11m -n 2 --config ds.json --memory 8GB
says "fp32, micro-batch 8 of 128 tokens, accumulation 1"
says "verdict    stage 1 fits"
plan 0 --preset gpt-11m -n 2 --config ds.json --memory 8GB --micro-batch 2
says "micro-batch 2 of 128 tokens, accumulation 4"
plan 0 --preset gpt-11m -n 2 --config ds.json --memory 8GB --dtype bf16
says "bf16, micro-batch 8"

# ---- GPUs: a memory for each rank, and the hosts' ----
plan 0 --parameters 7e9 -n 8 --gpu-memory 80GB
says "8 ranks on 8 GPUs of 1 host"
says "programs with their module on one"
says "verdict    stage 1 fits: a GPU needs"
grep -q "verdict.*a host needs\|between\|NVMe" out && fail "judges what nobody gave: $(cat out)"
plan 3 --parameters 70e9 -n 8 --gpu-memory 80GB --stages 3
says "stage 3 does not fit: a GPU needs"
says "smallest change that fits: zero_optimization.offload_optimizer.device \"cpu\"; then a GPU needs"
plan 3 --parameters 70e9 -n 8 --gpu-memory 80GB --stages 3 --memory 1TB
says "smallest change that fits: zero_optimization.offload_optimizer.device \"nvme\""
grep -q 'and a host' out || fail "says nothing of the host: $(cat out)"
plan 3 --preset gpt-4b -n 1 --gpu-memory 40GB
says "or without host memory"
plan 0 --parameters 7e9 -n 64 --ranks-per-node 8 --gpu-memory 80GB --stages 3 --json
expect "over hosts states are on the GPUs" "$(value "j['stages'][0]['shards_on_gpu']")" True
plan 0 --parameters 7e9 -n 64 --ranks-per-node 8 --gpu-memory 80GB --stages 3
says "Between hosts NCCL moves what is sharded"
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, "zerotorch": {"device_transport": "nccl"}}' > nccl.json
plan 0 --parameters 7e9 -n 64 --ranks-per-node 8 --gpu-memory 80GB --stages 3 --json --config nccl.json
expect "bytes of states of a GPU at stage 3" \
  "$(value "[round(sum(j['stages'][0]['kinds'][k]['peak_device_nbytes'] for k in ('parameters', 'master', 'optimizer', 'gradients')) * 64 / 7e9)]")" "[16]"
expect "tiers" "$(value "j['stages'][0]['tiers']['device_nbytes'] > j['stages'][0]['tiers']['host_nbytes'], j['run']['gpus'], j['run']['nodes']")" "(True, True, 8)"
# Of DeepSpeed's commonest configurations with GPUs.
for device in cpu nvme; do
  echo '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "'$device'", "nvme_path": "/tmp"}}}' > offload.json
  plan 0 --parameters 7e9 -n 8 --gpu-memory 24GB --memory 512GB --config offload.json
  says "a host needs"
  expect "lines that 80 columns do not hold" "$(awk 'length > 80' out | grep -vc '^model\|^run\|^activations')" 0
  plan 0 --parameters 7e9 -n 8 --gpu-memory 24GB --memory 512GB --config offload.json --json
  expect "states on GPUs" "$(value "sum(k.get('device_nbytes', 0) for n, k in j['stages'][3]['kinds'].items() if n in ('master', 'optimizer', 'gradients'))")" 0
done
expect "states in files" "$(value "j['stages'][3]['tiers']['nvme_nbytes'] > 8e9")" True
echo '{"train_batch_size": 8, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}' > twin.json
plan 0 --parameters 7e9 -n 8 --gpu-memory 80GB --config twin.json --json
expect "half of the states" "$(value "[round(s['kinds']['optimizer'].get('device_nbytes', 0) / s['kinds']['optimizer']['current_nbytes'], 1) for s in j['stages']]")" "[0.0, 0.5, 0.5, 0.5]"
plan 2 --parameters 7e9 --gpu-memory 80GB --store node_shared
plan 2 --parameters 7e9 --gpu-memory 80

# ---- machines from a file ----
cp "$source/examples/cluster.json" cluster.json
plan 0 --layers 40 --dim 5120 --seq 4096 --vocab 32000 --recompute 1 --cluster cluster.json
says "16 ranks on 16 GPUs of 2 hosts"
says "  between hosts"
grep -q "from host to GPU" out && fail "states on GPUs come from hosts: $(cat out)"
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}' > on_host.json
plan 0 --layers 40 --dim 5120 --seq 4096 --vocab 32000 --recompute 1 --cluster cluster.json --config on_host.json
for row in "forward and backward" "between ranks of a host" "between hosts" "from host to GPU" "from GPU to host" "update, at the speed of memory" "a step, at least"; do says "  $row"; done
expect "lines that 80 columns do not hold" "$(awk 'length > 80' out | grep -vc '^model\|^run\|^activations')" 0
plan 0 --layers 40 --dim 5120 --seq 4096 --vocab 32000 --recompute 1 --cluster cluster.json --config nccl.json --json
expect "products of matrices, as one counts them" \
  "$(value "round(j['stages'][0]['flops'] / (8 * (40 * 12 * 5120 ** 2) * 4096 + 6 * 32000 * 5120 * 4096 + 40 * 16 * 4096 ** 2 * 5120), 6)")" 1.0
# Gradients come from each rank, published and gathered parameters once to each host of eight.
expect "what crosses hosts" "$(value "[round(s['traffic']['between_hosts_nbytes'] / (2 * s['traffic']['reduced_numel'] * 8 / 15 + (4 if s['stage'] == 0 else 2) * (s['traffic']['published_numel'] + s['traffic']['gathered_numel']) / 8), 2) for s in j['stages']]")" "[1.0, 1.0, 1.0, 1.0]"
expect "seconds between hosts" "$(value "all(abs(s['traffic']['between_hosts_nbytes'] * 8 / 400e9 - s['seconds']['between_hosts']) < 1e-9 for s in j['stages'])")" True
expect "a step" "$(value "all(s['seconds']['compute'] + s['seconds']['update'] <= s['seconds']['at_least'] <= s['seconds']['in_turn'] for s in j['stages'])")" True
expect "a simulated step" "$(value "all(s['seconds']['at_least'] <= s['simulated']['seconds'] <= 2 * s['seconds']['at_least'] for s in j['stages'])")" True
expect "of it" "$(value "[round(sum(s['simulated'][k] for k in ('compute', 'copies', 'update', 'waits_for_parameters', 'waits_for_gradients', 'waits_for_ranks')) / s['simulated']['seconds'], 6) for s in j['stages']]")" "[1.0, 1.0, 1.0, 1.0]"
expect "goodput" "$(value "0.99 < j['goodput']['of_time'] < 1, j['goodput']['interval'] == j['goodput']['best_interval'] > 3600, j['goodput']['mtbf'] == 132 * 86400")" "(True, True, True)"
plan 0 --parameters 7e9 --cluster cluster.json --json
expect "without FLOPs no step" "$(value "[s['simulated'] for s in j['stages']]")" "[None, None, None, None]"
plan 0 --layers 40 --dim 5120 --seq 4096 --vocab 32000 --recompute 1 --cluster cluster.json
for row in "a step, simulated" "  of it forward and backward" "  waiting for gradients" "  links of a host in use" "  steps in a day, with failures" "failures   2 hosts"; do
  grep -qF "$row" out || fail "no row '$row': $(cat out)"
done
grep -q "with nothing beside anything" out && fail "an upper bound that is none: $(cat out)"
plan 0 --layers 40 --dim 5120 --seq 4096 --vocab 32000 --recompute 1 --cluster cluster.json -n 100000 --stages 3
grep -qF "12,500 hosts" out || fail "says nothing of the hosts: $(cat out)"
plan 0 --parameters 7e9 --cluster cluster.json -n 32 --gpu-memory 141GB --json
expect "options go first" "$(value "j['run']['ranks'], j['run']['nodes'], j['run']['gpu_memory_nbytes'], j['run']['node_memory_nbytes']")" "(32, 4, 141000000000, 2000000000000)"
echo '{"nodes": 1, "ranks_per_node": 2, "node": {"memory": "24GB", "memory_bandwidth": "20GB/s", "nvme": "2.5GB/s"}, "cpu": {"flops": "150G", "shared_memory": "5GB/s"}}' > cpu.json
plan 0 --preset gpt-1b --cluster cpu.json
says "between ranks of a host"
cluster() { # part of the message, the file
  echo "$2" > bad.json
  plan 2 --parameters 7e9 --cluster bad.json
  grep -qF -- "$1" err || fail "cluster '$2' says '$(cat err)', want '$1'"
}
cluster "bad.json: node.memroy: unknown key; did you mean 'memory'?" '{"node": {"memroy": "1TB"}}'
cluster "bad.json: node.memory: got '100', want a size with its unit" '{"node": {"memory": "100"}}'
cluster "bad.json: node.memory: got 100, want a size with its unit" '{"node": {"memory": 100}}'
cluster "bad.json: gpu.pcie: got '55', want a rate" '{"gpu": {"memory": "80GB", "pcie": "55"}}'
cluster "bad.json: nodes: got 0, want a whole number" '{"nodes": 0}'
cluster "bad.json: gpu: has no 'memory'" '{"gpu": {}}'
cluster "bad.json: node.latency: got '10', want a time with its unit" '{"node": {"latency": "10"}}'
cluster "bad.json: node.duplex: got 'both', want \"full\" or \"half\"" '{"node": {"duplex": "both"}}'
cluster "bad.json: failures: has no 'host_mtbf'" '{"failures": {"restart": "5min"}}'
cluster "has 'gpu' and 'cpu'" '{"gpu": {"memory": "80GB"}, "cpu": {}}'
cluster "is no JSON" '{'
cluster "bad.json: has 'memory' twice in one object; remove one" '{"gpu": {"memory": "80GB", "memory": "40GB"}}'
cluster "bad.json: node.memory: 1e30GB is too much; the most is 9e18" '{"node": {"memory": "1e30GB"}}'
cluster "bad.json: node.memory: got '24Gb', in bits; want bytes" '{"node": {"memory": "24Gb"}}'
cluster "--cluster bad.json: got [], want an object" '[]'
mkdir -p folder; plan 2 --parameters 7e9 --cluster folder
# One GPU need not hold all parameters.
plan 3 --preset gpt-4b -n 1 --gpu-memory 8GB --memory 100GB --stages 3 --micro-batch 1 --seq 256
grep -q 'offload_param.device "cpu"' <(tr -s ' \n' '  ' < out) || fail "parameters stay on the GPU: $(cat out)"
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}' > streamed.json
plan 0 --preset gpt-4b -n 1 --gpu-memory 3GB --memory 100GB --stages 3 --seq 256 --config streamed.json
for more in '"offload_activations": {"device": "nvme", "nvme_path": "/tmp"}' '"update": "delayed"'; do
  echo '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}, "zerotorch": {'"$more"'}}' > more.json
  plan $([[ $more == *nvme* ]] && echo 2 || echo 0) --preset gpt-1b -n 1 --gpu-memory 80GB --memory 100GB --config more.json
done
plan 0 --layers 40 --dim 5120 --heads 40 --seq 2048 --recompute 1 -n 1 --gpu-memory 24GB --memory 128GB --stages 3 --config "$source/examples/one_gpu.json"
plan 0 --preset gpt-1b -n 1 --gpu-memory 80GB --stages 2 --json --config "$source/examples/one_gpu.json"
expect "offload_param keeps states in host memory at any stage" "$(value "j['stages'][0]['shards_on_gpu']")" False
plan 0 --preset gpt-1b -n 1 --gpu-memory 20GB --stages 2 --json
needed=$(value "j['verdict']['gpu_nbytes']")
plan 0 --preset gpt-1b -n 1 --gpu-memory $((needed * 102 / 100))B --stages 2
says "little of the GPU is left"
plan 0 --preset gpt-1b -n 1 --gpu-memory $((needed * 108 / 100))B --stages 2
grep -q "is left" out && fail "there is room: $(cat out)"
# bf16 goes with updates in backward, whose steps cannot be skipped.
echo '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "zerotorch": {"update": "in_backward"}}' > in_backward.json
plan 3 --layers 40 --dim 5120 --heads 40 --seq 1024 -n 1 --gpu-memory 8GB --config in_backward.json
says "smallest change that fits"
# What is suggested fits when it is done.
echo '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}' > ratio0.json
plan 3 --parameters 20e9 -n 3 --gpu-memory 12GB --memory 1024GB --config ratio0.json
says "offload_optimizer.ratio 1"
sed 's/"stage": 0/"stage": 3/; s/0.5/1/' ratio0.json > ratio3.json
plan 0 --parameters 20e9 -n 3 --gpu-memory 12GB --memory 1024GB --config ratio3.json
plan 3 --parameters 70e9 -n 8 --gpu-memory 80GB --memory 1TB
grep -q 'device "cpu"' out && fail "suggests two places for states: $(cat out)"
grep -q 'reduce_bucket_size' out && fail "suggests what is not needed: $(cat out)"
# A speculative update moves what one that waits does, beside backward.
for update in after_backward speculative; do
  echo '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}, "zerotorch": {"update": "'$update'"}}' > speculative.json
  plan 0 --layers 32 --dim 4096 --seq 2048 --vocab 32000 -n 8 --cluster cluster.json --config speculative.json --json
  value "[j['stages'][2]['traffic']['nvme_nbytes'], round(j['stages'][2]['tiers']['nvme_nbytes'] / j['stages'][2]['traffic']['nvme_nbytes'])]" >> moved
  value "j['stages'][2]['seconds']['at_least'] - j['stages'][2]['seconds']['disk']" >> waits
done
expect "bytes moved" "$(sed 's/, [12]]//' moved | sort -u | wc -l)" 1
expect "files" "$(sed 's/.*, //' moved | tr -d ']' | paste -sd,)" 1,2
python3 -c "a, b = map(float, open('waits')); assert a > 0.1 and b == 0, (a, b)" || fail "an update that waits is beside backward: $(cat waits)"
plan 2 --parameters 7e9 --cluster nowhere.json

# ---- JSON ----
plan 0 --parameters 7.5e9 -n 64 --ranks-per-node 8 --memory 512GiB --bandwidth 100Gbit/s --json
expect "parameters" "$(value "j['model']['parameters_numel']")" 7500000000
expect "stages" "$(value "[s['stage'] for s in j['stages']]")" "[0, 1, 2, 3]"
expect "paper's figures" "$(value "[round(s['paper_states']['total_nbytes'] / 1e9, 2) for s in j['stages']]")" \
  "[120.0, 31.41, 16.64, 1.88]"
expect "nodes" "$(value "j['run']['nodes']")" 8
expect "memory" "$(value "j['run']['node_memory_nbytes']")" $((512 << 30))
expect "bandwidth" "$(value "j['run']['bandwidth_nbytes_per_s']")" 12500000000.0
expect "kinds" "$(value "sorted(j['stages'][0]['kinds'])")" \
  "['activations', 'buckets', 'gather', 'gradients', 'master', 'offload', 'optimizer', 'parameters', 'staging']"
expect "seconds" "$(value "all(abs(s['traffic']['nbytes'] / 12.5e9 - s['traffic']['seconds']) < 1e-9 for s in j['stages'])")" True
expect "activations" "$(value "j['activations']")" None
expect "verdict" "$(value "j['verdict']['fits'], j['verdict']['stage'], j['suggestion']")" "(True, 1, None)"
plan 3 --parameters 7.5e9 -n 8 --ranks-per-node 1 --memory 20GB --stages 3 --json
expect "does not fit" "$(value "j['verdict']['fits'], j['suggestion']['changes']")" \
  "(False, ['the module built by zero::deferred_init'])"
plan 3 --preset gpt-1b -n 2 --memory 20GB --stages 0 --json
expect "suggestion fits" "$(value "j['suggestion']['node_nbytes'] <= 20e9 and len(j['suggestion']['changes']) > 0")" True
for ranks in 1 3 1000 100000; do
  plan 0 --preset gpt-11m -n $ranks --ranks-per-node 4 --memory 1TB --json
  expect "ranks" "$(value "j['run']['ranks']")" $ranks
done

# ---- Hugging Face's config.json ----
echo '{"model_type": "gpt2"}' > gpt2.json
plan 0 --model gpt2.json -n 4 --memory 64GB --json
expect "GPT-2" "$(value "j['model']['parameters_numel'], j['model']['seq']")" "(124439808, 1024)"
plan 0 --model gpt2.json -n 4 --memory 64GB --seq 256 --recompute 1 --unfused-attention --json
expect "sequence" "$(value "j['model']['seq'], j['activations']['checkpointing']")" "(256, True)"
plan 0 --layers 2 --dim 128 --vocab 1000 --seq 64 --memory 8GB --json
expect "sizes" "$(value "j['model']['parameters_numel']")" $((2 * (12 * 128 * 128 + 13 * 128) + 2 * 1000 * 128 + 64 * 128 + 2 * 128))

# ---- bad input: one message, exit code 2 ----
echo '{"zero_optimization": {"stge": 3}, "train_batch_size": 4}' > typo.json
echo '{"train_batch_size": 5}' > five.json
echo '{"zero_optimization": {"offload_optimizer": {"device": "nvme"}}, "train_batch_size": 4}' > nvme.json
echo '{"model_type": "t5"}' > t5.json
echo '{' > broken.json
refused() { # part of the message, options
  local want=$1; shift
  plan 2 "$@"
  grep -qF -- "$want" err || fail "'zero plan $*' says '$(cat err)', want '$want'"
  grep -q '^zero: error: ' err || fail "'zero plan $*': no 'zero: error:'"
  expect "output of 'zero plan $*'" "$(cat out)" ""
}
refused "--memory: got '24 parsecs'" --memory "24 parsecs"
refused "--memory: got '0GB'" --memory 0GB
refused "--bandwidth: got 'fast'" --bandwidth fast
refused "--parameters: got 'many'" --parameters many
refused "want 0 to 1e+15" --parameters 1e18
refused "give one of them" --parameters 7e9 --preset gpt-1b
refused "knows no sizes" --parameters 7e9 --layers 3
refused "give both" --layers 3
refused "not a multiple of heads" --layers 3 --dim 100 --heads 3
refused "want one of" --preset gpt-0
refused "'missing.json' cannot be read" --model missing.json
refused "'./config.json' cannot be read" --model .
refused "broken.json: not JSON" --model broken.json
refused "model_type is 't5', which is not built" --model t5.json
refused "only --seq goes with it" --model gpt2.json --dim 64
refused "at most the 1024 positions" --model gpt2.json --seq 2048
refused "did you mean 'stage'" --config typo.json
refused "train_batch_size (5)" --config five.json
refused "offload" --config nvme.json
refused "cannot read" --config missing.json
refused "needs as many ranks on each" -n 5 --ranks-per-node 2 --store node_shared --memory 8GB
refused "--stages" --stages 4
refused "-n: got '0'" -n 0
refused "has no option '--no-such-option'" --no-such-option

# ---- a run holds what is planned ----
write_text
echo '{"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 2}}' > stage2.json
# layers, width, heads
for shape in "2 128 2" "5 96 3"; do
  read -r layers dim heads <<< "$shape"
  for recompute in 0 1; do
    rm -rf run
    OMP_NUM_THREADS=1 timeout 120 "$zero" train --preset gpt-11m --layers "$layers" --dim "$dim" --heads "$heads" --seq 32 --data text.py \
      --config stage2.json --dtype fp32 --steps 3 --eval-every 0 --eval-batches 1 --sample-length 0 --run-dir run -n 2 \
      --recompute "$recompute" > train.out 2>&1 || { fail "zero train:"; cat train.out; }
    plan 0 --layers "$layers" --dim "$dim" --heads "$heads" --seq 32 --micro-batch 8 --config stage2.json --dtype fp32 --stages 2 -n 2 \
      $([ "$recompute" = 0 ] || echo --recompute 1) --json
    planned=$(value "j['stages'][0]['kinds']['buckets']['peak_nbytes']")
    held=$(python3 -c "import json; print(max(r['buckets']['peak_nbytes'] for r in json.load(open('run/summary.json'))['memory']['by_rank']))")
    if [ "$recompute" = 0 ]; then
      expect "buckets of $shape" "$held" "$planned"
    else
      expect "buckets are a bound" "$(value "j['stages'][0]['buckets_are_bound']")" True
      expect "buckets of $shape, recomputed, $held of $planned planned" "$((held <= planned && planned < held * 5 / 4))" 1
    fi
  done
done

[ "$failures" = 0 ] && echo "zero plan: all well"
exit $((failures > 0))
