#!/bin/bash
# `zero config` from outside: what a file comes to, everything that is wrong with it, JSON, exit codes, keys.
# Usage: config_command_test.sh <path of zero>
set -u
zero=$(realpath "$1")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1

# config <exit code> <options>: runs `zero config` into out and err
config() {
  local want=$1; shift
  "$zero" config "$@" > out 2> err
  expect "exit code of 'zero config $*'" $? "$want"
}
# The words in their order, wherever a line ends.
says() { tr -s ' \n' '  ' < out | grep -qF -- "$1" || { fail "no '$1' in:"; cat out err; }; }
complains() { grep -qF -- "$1" err || { fail "no '$1' in:"; cat err; }; }
value() { python3 -c "import json; j = json.load(open('out')); print(($1))"; }

# ---- what engines refuse ----
cat > late.json << 'JSON'
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 0, "zero_optimization": {"stage": 2},
 "bf16": {"enabled": true, "check_grad_overflow": false}, "zerotorch": {"update": "in_backward", "unit_names": ["h.0"]}}
JSON
config 1 check late.json -n 2
complains 'in_backward with gradient_accumulation_steps 4'
sed 's/"gradient_accumulation_steps": 4/"gradient_accumulation_steps": 1/' late.json > on_time.json
config 0 check on_time.json -n 2
sed 's/in_backward/speculative/' on_time.json > no_disk.json
config 1 check no_disk.json -n 2
complains 'speculative'

# ---- what a file comes to ----
cat > ds.json << 'JSON'
{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 100, "total_num_steps": 5000}},
  "bf16": {"enabled": true},
  "bfloat16": null,
  "communication_data_type": "fp32",
  "sparse_gradients": false,
  "zero_force_ds_cpu_optimizer": false,
  "zero_optimization": {"stage": 3}
}
JSON
config 0 check ds.json -n 2
says "ds.json: would run on 2 ranks"
says "batch 32 samples a step = micro-batch 4 x accumulation 4 x 2 ranks; filled in: gradient_accumulation_steps"
says "precision bf16 with fp32 master weights; a step with a gradient that is not finite is skipped"
says "gradients travel in fp32"
says "optimizer AdamW: lr 0.0003, betas [0.9,0.95], eps 1e-08, weight_decay 0.1"
says "8 bytes of states a parameter (exp_avg, exp_avg_sq), besides its fp32 master weight"
says "schedule WarmupCosineLR: warmup_num_steps 100, warmup_type \"log\""
says "rate 0 at step 1, highest 0.0003 at step 101, last 3"
says "at step 5,000"
says "clipping the norm of all gradients is at most 1"
says "stage 3: optimizer states, gradients and parameters are sharded over 2 ranks;"
says "communication overlaps computation"
says "zero_force_ds_cpu_optimizer: accepted, no effect: the engine's own fused optimizer is always used"
says "gradient_clipping: not given: 1.0 as in DeepSpeed"
expect "standard error" "$(cat err)" ""
[ "$(wc -l < out)" -le 24 ] || fail "$(wc -l < out) lines do not fit a screen"

echo '{"train_micro_batch_size_per_gpu": 1}' > least.json
config 0 check least.json
says "1 sample a step = micro-batch 1 x accumulation 1 x 1 rank;"
says "filled in: train_batch_size, gradient_accumulation_steps"
says "precision fp32"
says "AdamW (no section in the file): lr 0.001"
says "schedule none: the rate stays 0.001"
says "stage 0: nothing is sharded"

fp16() { echo "{\"train_batch_size\": 8, \"gradient_clipping\": 0, \"fp16\": {\"enabled\": true $1},
  \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}},
  \"scheduler\": {\"type\": \"StepLR\", \"params\": {\"step_size\": 10, \"gamma\": 0.5}}}" > fp16.json; }
fp16 ''
config 0 check fp16.json -n 4
says "loss scale dynamic: from 65536, doubled after 1,000 steps without overflow, halved at overflow 2, at least 1"
says "no states"
says "rate 0.1 at step 1; --steps N says what it comes to"
says "clipping off"
says "notices none"
config 0 check fp16.json -n 4 --steps 21
says "rate 0.1 at step 1, highest 0.1 at step 1, last 0.025 at step 21"
fp16 ', "loss_scale": 128'
config 0 check fp16.json
says "loss scale 128, static"

echo '{"train_batch_size": 1, "tensorboard": {"enabled": true},
  "csv_monitor": {"enabled": true, "output_path": "rows", "job_name": "mine"}}' > monitors.json
config 0 check monitors.json
says "monitors TensorBoard's events in runs/DeepSpeedJobName; CSV files in rows/mine"

# ---- JSON: a file with the same meaning ----
config 0 check ds.json -n 2 --json
expect "accumulation" "$(value "j['gradient_accumulation_steps'], j['zero_optimization']['stage']")" "(4, 3)"
cp out again.json
config 0 check again.json -n 2 --json
cmp -s out again.json || fail "what --json writes is not what it reads"

# ---- what is wrong: all of it, in the order of the file ----
cat > wrong.json << 'JSON'
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "optimizer": {"type": "AdamW", "params": {
    "lr": "auto",
    "betas": "auto",
    "eps": "auto",
    "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {
    "warmup_min_lr": "auto",
    "warmup_max_lr": "auto",
    "warmup_num_steps": "auto",
    "total_num_steps": "auto"}},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 3,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stge": 3}
}
JSON
for format in "" --json; do
  config 1 check wrong.json -n 2 $format
  expect "output with problems" "$(cat out)" ""
  expect "lines with problems" "$(grep '^wrong.json:' err | cut -d: -f2 | tr '\n' ' ')" "2 3 4 5 7 8 9 10 12 13 14 15 16 19 20 21 22 "
  expect "autos" "$(grep -c '"auto" is filled in by Hugging Face' err)" 16
  complains 'wrong.json:7: optimizer.params.lr: "auto"'
  complains "write 1e-3 or remove the key"
  complains "wrong.json:22: zero_optimization.stge: unknown key; did you mean 'stage'?"
done
echo '{"train_batch_size": 5}' > five.json
config 0 check five.json
config 1 check five.json -n 2
complains "five.json: train_batch_size (5) must be"
echo '{"train_batch_size": 5' > cut.json
config 1 check cut.json
complains "cut.json:"

# ---- bad input ----
config 2 check missing.json
complains "cannot read"
config 2 check ds.json -n 0
complains "-n: got '0'"
config 2 check
config 2

# ---- keys ----
config 0 keys
expect "lines of keys" "$(grep -c '^train_batch_size  honoured  count  default null  samples per optimizer step' out)" 1
grep -q '^wandb  no effect  section' out || fail "no wandb among the keys"
all=$(wc -l < out)
config 0 keys STAGE3_
[ "$(wc -l < out)" -lt "$all" ] || fail "a pattern does not choose"
expect "keys without the pattern" "$(grep -vc 'stage3_' out)" 0
says "old name of zero_optimization.stage3_gather_16bit_weights_on_model_save"
config 1 keys no_such_key
complains "no key has 'no_such_key' in its name"

# ---- init: a file to begin with ----
config 0 init -n 4 --stage 2 --lr 1e-3 --batch-size 32 --micro-batch 2 --dtype fp32 --steps 1000
cp out begin.json
config 0 check begin.json -n 4
says "32 samples a step = micro-batch 2 x accumulation 4 x 4 ranks"
grep -q '"stage": 2' begin.json || fail "init: stage"
config 2 init --stage 7

# ---- convert: what Hugging Face's trainer fills in ----
cat > hf.json <<'END'
{  // the usual file
  "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params":
    {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto", "overlap_comm": true},
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",}
END
config 1 check hf.json
complains "config convert hf.json fills them in"
config 2 convert hf.json -n 2
complains "scheduler.params.total_num_steps: the trainer fills in the steps of its run: give --steps N"
config 0 convert hf.json -n 2 --steps 500 --dtype bf16 --lr 2e-5 --accumulation 4 --hidden-size 100
cp out converted.json
complains 'optimizer.params.lr: 2e-05 (--lr)'
complains 'train_micro_batch_size_per_gpu: 8 (the trainer'
complains 'train_batch_size: removed'
expect "lines of decisions" "$(wc -l < err)" 17
grep -q auto converted.json && fail "convert leaves an auto: $(cat converted.json)"
config 0 check converted.json -n 2
says "64 samples a step = micro-batch 8 x accumulation 4 x 2 ranks"
converted() { python3 -c 'import json, sys; j = json.load(open("converted.json")); print(eval(sys.argv[1]))' "$1"; }
expect "sizes of buckets" "$(converted '[j["zero_optimization"][k] for k in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")]')" "[10000, 9000, 1000]"
expect "rates" "$(converted '(j["optimizer"]["params"]["lr"], j["scheduler"]["params"]["warmup_max_lr"])')" "(2e-05, 2e-05)"
expect "precision" "$(converted '(j["bf16"]["enabled"], j["fp16"]["enabled"])')" "(True, False)"
echo '{"zero_optimization": {"stage": 9}, "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 1}' > bad.json
config 1 convert bad.json
complains "zero_optimization.stage"
# What the trainer makes itself where the file has no section for it, and options that nothing takes.
echo '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}' > bare.json
config 0 convert bare.json --steps 1000 --lr 2e-5 --weight-decay 0.1
cp out converted.json
expect "the trainer's optimizer" "$(converted '(j["optimizer"]["params"]["lr"], j["optimizer"]["params"]["weight_decay"], j["scheduler"]["params"]["total_num_steps"])')" "(2e-05, 0.1, 1000)"
config 0 check converted.json
says "last 4.0"
config 0 convert bare.json
complains "optimizer: AdamW (the trainer's own"
complains "scheduler: none (the trainer's own"
config 2 convert bare.json --warmup-steps 50
complains "give --steps N"
config 2 convert converted.json --lr 3e-4
complains '--lr: no value of converted.json is "auto"'
config 0 convert converted.json
echo '[1' > bad.json
config 2 convert bad.json
complains "bad.json:"

[ "$failures" = 0 ] && echo "zero config: all well"
exit $((failures > 0))
