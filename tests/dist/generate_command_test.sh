#!/bin/bash
# `zero generate` and `zero eval`: of Hugging Face folders what transformers makes of them, of runs what they have learnt,
# the same on any number of ranks; and what is wrong said before there are ranks.
# Usage: generate_command_test.sh <zero> <source dir>
zero=$(realpath "$1")
golden=$(realpath "$2")/tests/data/causal_lm
source "$(dirname "$0")/../support/command_test.sh"
source "$(dirname "$0")/../support/golden_folder.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=warning XDG_CACHE_HOME=$work/cache
near() { # what, got, wanted, tolerance
  python3 -c 'import sys; a, b, t = map(float, sys.argv[1:]); sys.exit(abs(a - b) > t)' "$2" "$3" "$4" || fail "$1: got $2, want $3"
}
refused() { # part of the message, command and options
  local want=$1; shift
  timeout 60 "$zero" "$@" > out 2> err
  local code=$?
  [ $code -eq 2 ] || [ $code -eq 1 ] || fail "exit code of 'zero $*' is $code"
  grep -qF -- "$want" err || fail "'zero $*' says '$(cat err)', want '$want'"
}
# ---- the likeliest tokens are those of transformers, with what is sharded and without
for model in gpt2 llama mistral qwen3_moe; do
  folder $model $model
  wanted="$(cat $model/tokens) $(value "$golden/generated.json" "' '.join(map(str, j['$model'][:7]))")"
  for n in 1 2; do
    expect "$model on $n ranks" \
      "$(timeout 60 "$zero" generate $model --tokens $(cat $model/tokens) --temperature 0 --length 7 -n $n -q)" "$wanted"
  done
done
got=$(timeout 60 "$zero" generate llama --tokens $(cat llama/tokens) --temperature 0 2> err)
expect "tokens up to the model's end" "$(wc -w <<< "$got")" 16
grep -q "at most 11 tokens: the model is made for 16 positions" err || fail "at the model's end: $(cat err)"
grep -q "5 tokens of prompt and the first one in .* tokens/s" err || fail "of its speed: $(cat err)"

# ---- a folder with a tokenizer
words() { echo "the cat sat on a mat and dog ran"; }
python3 - $(words) > llama/tokenizer.json << 'EOF'
import json, sys
vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {word: 3 + i for i, word in enumerate(sys.argv[1:])}
print(json.dumps({"version": "1.0", "added_tokens": [
    {"id": i, "content": c, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for c, i in list(vocab.items())[:3]],
  "pre_tokenizer": {"type": "Whitespace"}, "decoder": None, "normalizer": None, "truncation": None, "padding": None,
  "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
  "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}))
EOF
timeout 60 "$zero" generate llama --prompt "the cat" --temperature 0 --length 3 > text 2> err || fail "generate: $(cat err)"
numbers=$(timeout 60 "$zero" generate llama --tokens 1 3 4 --temperature 0 --length 3 2> /dev/null)
python3 - "$numbers" "$(cat text)" << 'EOF' || fail "text of tokens '$numbers' is '$(cat text)'"
import json, sys
pieces = {number: text for text, number in json.load(open("llama/tokenizer.json"))["model"]["vocab"].items()}
words = [pieces[int(n)] for n in sys.argv[1].split() if int(n) in pieces and int(n) > 2]  # 0 to 2 are special
sys.exit(" ".join(words) != sys.argv[2])
EOF
expect "text of a pipe" "$(echo -n "the cat" | timeout 60 "$zero" generate llama --prompt - --temperature 0 --length 3 -q 2>&1)" "$(cat text)"
for seed in 1 2 3; do timeout 60 "$zero" generate llama --prompt "the cat" --temperature 3 --length 8 --seed $seed -q; done > seeds
[ "$(sort -u seeds | wc -l)" -ge 2 ] || fail "every seed gives '$(cat seeds)'"
expect "a seed's text" "$(timeout 60 "$zero" generate llama --prompt "the cat" --temperature 3 --length 8 --seed 2 -q -n 2)" "$(sed -n 2p seeds)"

# ---- loss of a file: by its tokens, which are kept
words > a.txt; words | tr ' ' '\n' | tac | tr '\n' ' ' > b.txt
mkdir texts && cp a.txt b.txt texts/
for n in 1 2 3; do
  timeout 60 "$zero" eval llama --data texts --seq 4 -n $n --json > eval$n.json || fail "eval on $n ranks"
done
expect "tokens" "$(value eval1.json 'j["tokens"]')" 19
expect "bits on 2 ranks" "$(value eval2.json 'j["loss"]')" "$(value eval1.json 'j["loss"]')"
expect "bits on 3 ranks" "$(value eval3.json 'j["loss"]')" "$(value eval1.json 'j["loss"]')"
near perplexity "$(value eval1.json 'j["perplexity"]')" "$(value eval1.json '__import__("math").exp(j["loss"])')" 1e-9
near "bits per byte" "$(value eval1.json 'j["bits_per_byte"]')" \
  "$(value eval1.json 'j["loss"] / __import__("math").log(2) * 20 / (len(open("a.txt").read()) + len(open("b.txt").read()))')" 1e-6
kept=$(find cache -name tokens.json -printf '%p %T@')
timeout 60 "$zero" eval llama --data texts --seq 4 > out || fail "eval again"
expect "tokens that were made" "$(find cache -name tokens.json -printf '%p %T@')" "$kept"
grep -q "^loss .* nats a token; perplexity" out || fail "eval says $(cat out)"
grep -q "^text .*/texts$" out || fail "eval says $(cat out)"
echo "the dog" >> texts/a.txt
timeout 60 "$zero" eval llama --data texts --seq 4 --json > eval4.json
expect "tokens of more text" "$(value eval4.json 'j["tokens"]')" 21

# ---- trained on text, by the same tokenizer, and gone on with when the cache is gone
for i in $(seq 1 40); do words; echo "a cat $i"; done > long.txt
train="timeout 60 $zero train --no-tensorboard --cache-dir kept"
$train --init-from llama --data long.txt --seq 8 --steps 2 --batch-size 2 --sample-length 0 --run-dir learnt > out 2>&1 ||
  fail "train on text: $(cat out)"
grep -q "^data .*long.txt" out || fail "train says $(cat out)"
expect "tokens" "$(value learnt/plan.json 'j["token_nbytes"], j["text_tokenizer"]')" "(2, '$work/llama')"
rm -r kept
timeout 60 "$zero" train --resume learnt --steps 3 > out 2>&1 || fail "resume on text: $(cat out)"
timeout 60 "$zero" eval learnt > out && grep -q "^loss .* bits per byte" out || fail "eval of it: $(cat out)"
timeout 60 "$zero" generate learnt --prompt "the cat" --length 3 -q | grep -q "^the cat" || fail "generate from it"
folder llama many && sed -i 's/"vocab_size": 23/"vocab_size": 400/' many/config.json
mkdir beside && cp long.txt beside/ && head -c 1000 /dev/urandom > beside/picture.bin  # is no file of tokens
$train --init-from llama --data beside --seq 8 --steps 1 --batch-size 2 --sample-length 0 --run-dir beside-run > out 2>&1 ||
  fail "train on text beside other files: $(cat out)"
expect "tokens of text beside other files" "$(value beside-run/plan.json 'j["token_nbytes"]')" 2
refused "has no tokenizer.json to make tokens of the text with" train --init-from many --data long.txt --run-dir no

# ---- adapters: trained alone, exported as PEFT's, gone on with, merged
$train --init-from llama --data long.txt --seq 8 --steps 4 --lr 0.1 --batch-size 2 --dtype fp32 --sample-length 0 --run-dir adapted \
  --lora 2 --lora-targets q_proj,down_proj --export adapters > out 2>&1 || fail "train --lora: $(cat out)"
grep -q "export .*adapters: the adapters, as PEFT's" out || fail "train --lora says $(cat out)"
expect "adapter_config.json" "$(value adapters/adapter_config.json 'j["r"], j["lora_alpha"], j["target_modules"], j["base_model_name_or_path"]')" \
  "(2, 4.0, ['down_proj', 'q_proj'], '$work/llama')"
expect "what is trained" "$(value adapted/plan.json 'j["trained_numel"]')" $((2 * (2 * (8 + 16) + 2 * (12 + 8))))
timeout 60 "$zero" eval adapters --data texts --seq 8 --json > of_adapters.json || fail "eval of adapters"
timeout 60 "$zero" eval adapted --data texts --seq 8 --json > of_run.json || fail "eval of their run"
timeout 60 "$zero" eval llama --data texts --seq 8 --json > of_base.json
expect "loss of adapters" "$(value of_adapters.json 'j["loss"]')" "$(value of_run.json 'j["loss"]')"
[ "$(value of_base.json 'j["loss"]')" != "$(value of_run.json 'j["loss"]')" ] || fail "adapters have learnt nothing"
timeout 60 "$zero" train --resume adapted --merge --export merged > out 2>&1 || fail "resume --merge: $(cat out)"
timeout 60 "$zero" eval merged --data texts --seq 8 --json > of_merged.json || fail "eval of the merged model"
near "loss of the merged model" "$(value of_merged.json 'j["loss"]')" "$(value of_run.json 'j["loss"]')" 1e-5
timeout 60 "$zero" generate adapters --prompt "the cat" --temperature 0 --length 5 -q > one
timeout 60 "$zero" generate merged --prompt "the cat" --temperature 0 --length 5 -q > two
cmp one two || fail "text of adapters and of the merged model"
refused "no linear map 'c_attn'; there are" train --init-from llama --lora 2 --lora-targets c_attn --data long.txt --run-dir no
refused "give its folder with --init-from" train --model llama --lora 2 --data long.txt --run-dir no
refused "--lora RANK trains some" train --init-from llama --merge --export x --data long.txt --run-dir no
refused "--lora RANK gives the model some" train --init-from llama --lora-alpha 3 --data long.txt --run-dir no
sed -i 's#"base_model_name_or_path": ".*"#"base_model_name_or_path": "someone/model"#' adapters/adapter_config.json
refused "base_model_name_or_path 'someone/model', is no folder here" generate adapters --prompt x
ln -s ../llama adapters/base && sed -i 's#someone/model#base#' adapters/adapter_config.json
timeout 60 "$zero" eval adapters --data texts --seq 8 --json > beside.json || fail "eval of adapters beside their base"
expect "loss of them" "$(value beside.json 'j["loss"]')" "$(value of_run.json 'j["loss"]')"

# ---- the best validation is what is exported
cat > rising.json <<'END'
{"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1.5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 12, "warmup_num_steps": 2, "warmup_type": "linear",
                                                    "warmup_min_ratio": 0.01, "cos_min_ratio": 0.05}},
 "zero_optimization": {"stage": 3}}
END
$train --init-from llama --data long.txt --seq 8 --steps 8 --eval-every 2 --config rising.json --sample-length 0 \
  --eval-batches 0 --run-dir best --keep-best --export exported > out 2>&1 || fail "train --keep-best: $(cat out)"
kept=$(value best/summary.json 'j["best_checkpoint"]')
[ -n "$kept" ] && [ "$(value best/summary.json 'j["best_val_loss_step"]')" -lt "$(value best/summary.json 'j["steps"]')" ] || fail "best: $(cat out)"
timeout 60 "$zero" eval exported --data texts --seq 8 --json > of_export.json || fail "eval of the export"
timeout 60 "$zero" eval "$kept" --data texts --seq 8 --json > of_best.json || fail "eval of the best"
expect "loss of the best" "$(value of_export.json 'j["loss"]')" "$(value of_best.json 'j["loss"]')"
timeout 60 "$zero" eval best/best --data texts --seq 8 --json > of_folder.json || fail "eval of a folder of checkpoints"
expect "loss of the newest in it" "$(value of_folder.json 'j["loss"], j["split"]')" "$(value of_best.json 'j["loss"], "all"')"
refused "--suffix: is of a text that is given with --data" eval best --suffix .py
$train --init-from llama --data long.txt --seq 8 --steps 1 --sample-length 0 --export exported --run-dir no > out 2>&1
expect "exit code of an export over another" $? 2
grep -q "holds weights already" out || fail "export over another: $(cat out)"

# ---- tokens that are there; the loss is that of a validation of the same sequences, without the experts' balance
folder mixtral mixtral
mkdir tokens
python3 -c '
import array, random
random.seed(5)
for name, count in (("train", 400), ("val", 8 * 3 * 8 + 1)):
    array.array("H", [random.randrange(23) for _ in range(count)]).tofile(open(f"tokens/{name}.bin", "wb"))'
for model in llama mixtral; do
  timeout 60 "$zero" train --init-from $model --data tokens --seq 8 --steps 1 --lr 0 --dtype fp32 --eval-batches 0 \
    --batch-size 2 --sample-length 0 --run-dir run-$model --no-tensorboard > out 2>&1 || fail "train: $(cat out)"
  timeout 60 "$zero" eval $model --data tokens --seq 8 --json > eval.json
  near "loss of $model" "$(value eval.json 'j["loss"]')" "$(head -1 run-$model/metrics.jsonl | python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["val_loss"])')" 1e-6
  # A run is evaluated on its own text, and a checkpoint as the run.
  timeout 60 "$zero" eval run-$model --json > of_run.json || fail "eval of a run"
  near "loss of the run" "$(value of_run.json 'j["loss"]')" "$(value eval.json 'j["loss"]')" 1e-6
  timeout 60 "$zero" eval run-$model/checkpoints/global_step1 --json > of_checkpoint.json || fail "eval of a checkpoint"
  expect "loss of the checkpoint" "$(value of_checkpoint.json 'j["loss"]')" "$(value of_run.json 'j["loss"]')"
done
timeout 60 "$zero" eval llama --data tokens --split train --seq 8 --json > eval.json
expect "tokens to train on" "$(value eval.json 'j["tokens"]')" 399
timeout 60 "$zero" eval llama --data tokens --seq 8 --dtype bf16 --json > bf16.json
near "in bf16" "$(value bf16.json 'j["loss"]')" "$(value of_run.json 'j["loss"]')" 0.5

# ---- models of bytes
yes "for i in range(10): print(i)" | head -c 20000 > bytes.py
timeout 100 "$zero" train --data bytes.py --preset gpt-tiny --steps 120 --seq 32 --sample-length 0 --eval-batches 0 \
  --run-dir bytes --no-tensorboard > out 2>&1 || fail "train: $(cat out)"
timeout 60 "$zero" generate bytes --prompt 'for i in range(10):' --temperature 0 --length 20 -q > one || fail "generate of bytes"
timeout 60 "$zero" generate bytes --prompt 'for i in range(10):' --temperature 0 --length 20 -q -n 3 > three
cmp one three
expect "what it has learnt" "$(head -c 24 one)" "for i in range(10): prin"
timeout 60 "$zero" eval bytes --json > eval.json
near "loss of the run" "$(value eval.json 'j["loss"]')" "$(tail -1 bytes/metrics.jsonl | python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["val_loss"])')" 0.02
head -c 3000 bytes.py > part.txt
timeout 60 "$zero" eval bytes --data part.txt > out || fail "eval of a file"
grep -q "nats a byte" out || fail "eval says $(cat out)"
grep -q "of 3,000 bytes in sequences of 32" out || fail "eval says $(cat out)"

# ---- what is wrong
refused "'nowhere' is no model" generate nowhere
refused "'nowhere' is no model" eval nowhere
mkdir empty && refused "'empty' is no model" generate empty
refused "zero generate: model is required" generate
refused "vocabulary has 23 tokens" generate llama --tokens 99
refused "made for 16 positions" generate llama --tokens 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1
refused "give the tokens themselves with --tokens" generate mistral --prompt x
refused "excludes" generate llama --prompt x --tokens 1
refused "--top-p" generate llama --top-p 0
refused "give a file or folder of text, or of tokens, with --data" eval llama
refused "there is no file or folder" eval llama --data nothing.txt
refused "there is no tokenizer.json" eval mistral --data a.txt
refused "made for 16 positions" eval llama --data texts --seq 17
refused "leave --split away" eval llama --data texts --split train
printf '{' > empty/config.json
refused "config.json" generate empty --tokens 1
mv llama/tokenizer.json kept.json; echo '{}' > llama/tokenizer.json
refused "is no tokenizer" generate llama --prompt x
mv kept.json llama/tokenizer.json
python3 -c 'import array; array.array("H", [0, 60000] * 40).tofile(open("tokens/val.bin", "wb"))'
refused "vocabulary has 23: these tokens are another tokenizer's" eval llama --data tokens --seq 8

# ---- output that cannot be written is an error; standard error that cannot is none
for command in "eval llama --data texts --seq 4 --json" "generate llama --tokens 1 --length 2 -q"; do
  timeout 60 "$zero" $command > /dev/full 2> err && fail "zero $command to a full disk is a success"
  grep -q "standard output cannot be written" err || fail "zero $command to a full disk says $(cat err)"
done
timeout 60 "$zero" generate llama --tokens 1,3 --length 2 2>&- > out || fail "generate without standard error: $?"
expect "tokens without standard error" "$(wc -w < out)" 4

# ---- modules of the tokenizer's program are not taken from where the user is
mkdir elsewhere && echo 'raise SystemExit("from here")' | tee elsewhere/random.py elsewhere/json.py > elsewhere/tokenizers.py
(cd elsewhere && timeout 60 "$zero" generate ../llama --prompt "the cat" --length 2 -q > ../out 2> ../err) || fail "generate beside modules: $(cat err)"
ZERO_PYTHON=/bin/false refused "ZERO_PYTHON is no Python with the package tokenizers" generate llama --prompt x
TMPDIR=$work/nowhere refused "there is no folder for temporary files: TMPDIR is '$work/nowhere'" generate llama --tokens 1

# ---- token files that were cut off
python3 - << 'EOF'
import array, json, os
os.mkdir("counted")
for name in ("train", "val"): array.array("H", [3] * 50).tofile(open(f"counted/{name}.bin", "wb"))
json.dump({"token_nbytes": 2, "vocab": 23, "train_tokens": 50, "validation_tokens": 60, "validation_text_nbytes_per_token": 2.0}, open("counted/tokens.json", "w"))
EOF
refused "val.bin: got 50 tokens, and tokens.json says 60: the file is cut off" eval llama --data counted --seq 8
cp -r llama odd && echo '{"eos_token_id": [[1]]}' > odd/generation_config.json
refused "generation_config.json: eos_token_id is [[1]]" generate odd --tokens 1
echo '[]' > odd/tokenizer_config.json && sed -i 's#</s>#<end>#' odd/tokenizer.json
refused "odd has not made tokens of the text" eval odd --data texts --seq 4
grep -q "tokenizer_config.json: is not a JSON object" err || fail "of a damaged tokenizer_config.json: $(cat err)"

# ---- killed: nothing is left
timeout 60 "$zero" generate bytes --prompt x --length 1000000 > cut.txt 2> err &
pid=$!
for _ in $(seq 1 300); do [ "$(wc -c < cut.txt)" -gt 20 ] && break; sleep 0.1; done
kill -KILL "$(pgrep -P $pid)"; wait $pid 2> /dev/null

# ---- a signal ends it, with the text so far
timeout 60 "$zero" generate bytes --prompt x --length 1000000 -n 2 > cut.txt 2> err &
pid=$!
for _ in $(seq 1 300); do [ "$(wc -c < cut.txt)" -gt 20 ] && break; sleep 0.1; done
kill -INT "$(pgrep -P $pid)"; wait $pid
expect "exit code after SIGINT" $? 130
[ "$(wc -c < cut.txt)" -gt 20 ] || fail "no text before the signal: $(cat err)"

rm -r bytes/checkpoints/*
refused "no checkpoint to take its weights from" generate bytes
truncate -s 5000 llama/model.safetensors
refused "model.safetensors" generate llama --tokens 1

expect_nothing_in_shm
[ -z "$(find "${TMPDIR:-/tmp}" -maxdepth 1 -name 'zero-??????' -newer seeds)" ] || fail "folders are left in ${TMPDIR:-/tmp}"
[ $failures -eq 0 ] || { echo "$failures failures"; exit 1; }
echo "zero generate, zero eval: all good"
