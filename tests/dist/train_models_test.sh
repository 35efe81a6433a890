#!/bin/bash
# Models of Hugging Face's shapes in `zero train` and `zero plan`: trained on tokens, written, gone on with, and what is
# wrong with folders and tokens said before there is anything. Usage: train_models_test.sh <zero> <source dir>
zero=$(realpath "$1")
golden=$(realpath "$2")/tests/data/causal_lm
source "$(dirname "$0")/../support/command_test.sh"
source "$(dirname "$0")/../support/golden_folder.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=warning
refused() { # part of the message, options
  local want=$1; shift
  timeout 60 "$zero" train "$@" > out 2> err
  local code=$?
  [ $code -eq 2 ] || [ $code -eq 1 ] || fail "exit code of 'zero train $*' is $code"
  grep -qF -- "$want" err || fail "'zero train $*' says '$(cat err)', want '$want'"
}
tokens() { # folder, vocabulary, train tokens, validation tokens: uint16, the next token follows from the last
  mkdir -p "$1"
  python3 - "$@" <<'END'
import array, sys
vocab = int(sys.argv[2])
for name, count in (("train", int(sys.argv[3])), ("val", int(sys.argv[4]))):
    array.array("H", [i * i * 7 % vocab for i in range(count)]).tofile(open(f"{sys.argv[1]}/{name}.bin", "wb"))
END
}
tokens tokens 23 4000 400
run="--data tokens --cache-dir cache --eval-batches 2 --eval-every 0 --no-tensorboard --micro-batch 2 --batch-size 4 --dtype fp32"

for model in llama mixtral; do
  folder $model $model
  timeout 120 "$zero" train --init-from $model $run --lr 0.02 --steps 12 --run-dir run-$model --export tuned-$model > out 2> err ||
    fail "$model: $(cat err)"
  grep -q "weights of .*$model" out || fail "$model: $(cat out)"
  grep -q "nats a token, perplexity" out || fail "$model: no loss per token: $(cat out)"
  grep -q "a Hugging Face folder" out || fail "$model: the export is not said"
  expect "it learns" "$(value run-$model/summary.json 'j["val_loss"] < j["val_loss_at_start"] - 0.2')" True
  # What was written begins where the run has ended, and keeps what config.json says.
  expect config "$(cmp tuned-$model/config.json $model/config.json && echo same)" same
  timeout 120 "$zero" train --init-from tuned-$model $run --steps 1 --lr 0 --run-dir again-$model -q > /dev/null 2> err ||
    fail "$model again: $(cat err)"
  expect "loss of what was written" "$(value again-$model/summary.json 'j["val_loss_at_start"]')" \
    "$(value run-$model/summary.json 'j["val_loss"]')"
done

# One curve: another stage and number of ranks; a run that goes on.
timeout 120 "$zero" train -n 1 --stage 0 --init-from llama $run --lr 0.02 --steps 12 --run-dir one -q > /dev/null 2> err || fail "$(cat err)"
expect "loss on one rank" "$(value one/summary.json 'j["val_loss"]')" "$(value run-llama/summary.json 'j["val_loss"]')"
timeout 120 "$zero" train --init-from llama $run --lr 0.02 --steps 7 --run-dir half -q > /dev/null 2> err || fail "$(cat err)"
mv llama moved  # its checkpoint has the weights
timeout 120 "$zero" train --resume half --steps 12 --export late -q > /dev/null 2> err || fail "--resume: $(cat err)"
mv moved llama
[ -s late/model.safetensors ] || fail "--resume --export: no weights"
timeout 120 "$zero" train --init-from llama $run --dtype bf16 --steps 1 --run-dir narrow --export narrow-out -q > /dev/null 2> err ||
  fail "bf16: $(cat err)"
expect "dtype of bf16 weights" "$(value narrow-out/config.json 'j["dtype"]')" bfloat16
grep -q '"step":12' half/metrics.jsonl || fail "--resume half: no step 12"
# Random weights, of config.json alone; recomputed.
timeout 120 "$zero" train --model llama/config.json $run --steps 2 --recompute 1 --run-dir fresh > out 2> err || fail "--model: $(cat err)"
grep -q "random weights" out || fail "--model: $(cat out)"

# ---- exports that would destroy or mix something ----
cp -r llama base && before=$(md5sum base/model.safetensors)
timeout 120 "$zero" train --init-from base $run --lora 2 --steps 2 --run-dir adapted --export adapters -q > /dev/null 2> err || fail "--lora: $(cat err)"
refused_export() { # what it says, options
  timeout 60 "$zero" train "${@:2}" > out 2> err; local code=$?
  expect "exit code of ${*:2}" $code 2
  grep -q -e "$1" err || fail "${*:2} says $(cat err)"
}
refused_export "is where the model comes from" --resume adapted --merge --export base
refused_export "is where the model comes from" --resume adapted --steps 3 --export base
refused_export "holds adapters, with which the model would be read" --resume adapted --steps 3 --merge
refused_export "is the run's folder" --resume adapted --steps 3 --export adapted
refused_export "is the run's folder" --init-from llama $run --steps 1 --run-dir same --export same
cp -r llama other_model
refused_export "holds a model, which would be read with the adapters" --init-from base $run --lora 2 --run-dir mixed --export other_model
refused_export "of the model that --export writes" --init-from base $run --lora 2 --merge --run-dir unmerged
expect "base" "$(md5sum base/model.safetensors)" "$before"
timeout 120 "$zero" train --resume adapted --steps 3 --merge --export merged -q > /dev/null 2> err || fail "--merge: $(cat err)"
timeout 120 "$zero" train --resume adapted --steps 4 --merge --export merged -q > /dev/null 2> err || fail "--merge once more: $(cat err)"
# The best validation was before training: what is exported is said.
timeout 120 "$zero" train --init-from llama $run --lr 30 --steps 6 --eval-every 0 --keep-best --run-dir worse_llama --export worse_out > out 2> err ||
  fail "--keep-best: $(cat err)"
grep -q "the export is of step 6; of the best validation, after 0 steps, there is no checkpoint" err || fail "--keep-best --export: $(cat out err)"
grep -q "as a Hugging Face folder, of step 6" out || fail "--keep-best --export: $(cat out)"

# ---- tokens that are context: every target counts the same, whatever micro-batch it is in ----
mkdir -p chat
python3 - <<'EOF'
import array, json, random
random.seed(3)
for name, count in ("train", 4000), ("val", 16 * 24 + 1):
    tokens = array.array("I")
    while len(tokens) < count:
        said, length = random.randrange(23), random.randrange(1, 40)
        tokens.extend(((said + i) % 23) | (1 << 31) for i in range(length))
        tokens.extend((said * i) % 23 for i in range(random.randrange(1, 9)))
    tokens[:count].tofile(open(f"chat/{name}.bin", "wb"))
json.dump({"token_nbytes": 4, "validation_text_nbytes_per_token": 1, "has_context": True}, open("chat/tokens.json", "w"))
EOF
chat="--data chat --cache-dir cache --seq 16 --batch-size 8 --dtype fp32 --lr 0.01 --steps 6 --eval-batches 0 --sample-length 0 --no-tensorboard"
timeout 120 "$zero" train -n 2 --init-from llama $chat --micro-batch 1 --run-dir chat1 > out 2> err || fail "context: $(cat err)"
grep -Eq 'a loss is taken on [0-9]+ % of them; the others are context' out || fail "context is not said: $(cat out)"
timeout 120 "$zero" train -n 1 --stage 0 --init-from llama $chat --micro-batch 1 --run-dir chat2 -q > /dev/null 2> err || fail "context: $(cat err)"
timeout 120 "$zero" train -n 2 --init-from llama $chat --micro-batch 4 --run-dir chat3 -q > /dev/null 2> err || fail "context: $(cat err)"
losses() { python3 -c 'import json, sys; print(*(round(json.loads(l).get("loss", json.loads(l).get("val_loss")), int(sys.argv[2])) for l in open(sys.argv[1] + "/metrics.jsonl")))' "$1" "$2"; }
expect "curve on one rank" "$(losses chat2 17)" "$(losses chat1 17)"
expect "curve of other micro-batches" "$(losses chat3 4)" "$(losses chat1 4)"
timeout 60 "$zero" eval llama --data chat --split validation --json --seq 16 > out.json 2> err || fail "eval of context: $(cat err)"
[ "$(value out.json 'j["tokens"]')" -lt 200 ] || fail "context is predicted: $(cat out.json)"
"$zero" train --init-from llama $chat --steps 1 --lr 0 --run-dir chat4 -q > /dev/null 2>&1
expect "loss of zero eval" "$(value out.json 'round(j["loss"], 5)')" "$(value chat4/summary.json 'round(j["val_loss"], 5)')"

# ---- what is wrong is said ----
export ZERO_TIMEOUT_S=20
tokens large 37 4000 400
refused "the largest token is 36, and the model's vocabulary has 23" --init-from llama --data large --cache-dir cache --run-dir no1
write_text
refused "the model's vocabulary has 23 tokens, and a byte of text can have 256 values" --init-from llama --data text.py --cache-dir cache --run-dir no3
refused "--prompt: tokens of a prompt" --init-from llama $run --prompt hello --run-dir no4
refused "nobody here knows the text of the tokens" --init-from llama $run --sample-length 5 --run-dir no5
refused "is made for at most 16 positions" --init-from llama $run --seq 17 --run-dir no6
refused "--seq goes with it" --init-from llama $run --layers 3 --run-dir no7
refused "writes a Hugging Face folder, of a model that --model gives" --preset gpt-tiny --export x --data text.py --run-dir no8
refused "is where the model comes from" --init-from llama --export llama/../llama $run --run-dir no11
refused "--export /proc/nowhere: cannot be written to" --init-from llama --export /proc/nowhere $run --run-dir no12
refused "'nowhere/config.json' cannot be read" --init-from nowhere/config.json $run --run-dir no9
cp -r llama other && sed -i 's/"silu"/"gelu"/' other/config.json
refused "'hidden_act' is \"gelu\": only \"silu\" is built" --init-from other $run --run-dir no10
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do [ ! -e no$i ] || fail "no$i was made by a run that was refused"; done
# Weights that lack something, of another shape, cut off: an error that names it, on all ranks, within seconds.
folder llama_biases_tied biased && cp llama/model.safetensors biased/
refused "self_attn.q_proj.bias" --init-from biased $run --run-dir bad1
folder llama wider && sed -i 's/"vocab_size": 23/"vocab_size": 24/' wider/config.json
refused "embed_tokens.weight" --init-from wider $run --run-dir bad2
folder llama cutoff && truncate -s 9000 cutoff/model.safetensors
refused "model.safetensors" --init-from cutoff $run --run-dir bad3
rm cutoff/model.safetensors
refused "cutoff" --init-from cutoff $run --run-dir bad4
expect_nothing_in_shm
[ $failures -eq 0 ] || { echo "$failures failures"; exit 1; }
echo "zero train --model: all good"
