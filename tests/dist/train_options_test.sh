#!/bin/bash
# Options of `zero train` over the configuration: what they change, what they leave, what they refuse.
# Usage: train_options_test.sh <zero>
zero=$(realpath "$1")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=warning
write_text
text="--preset gpt-tiny --data text.py --cache-dir cache"
run="$text --eval-batches 1 --eval-every 0 --sample-length 0"

printed() { "$zero" train --preset gpt-tiny --print-config "$@" > config.out 2> err || fail "--print-config $*: $(cat err)"; }
# of config.json below a folder, or of what was printed
refused() { # part of the message, options
  local want=$1; shift
  "$zero" train "$@" > out 2> err
  expect "exit code of 'zero train $*'" $? 2
  grep -qF -- "$want" err || fail "'zero train $*' says '$(cat err)', want '$want'"
}

# ---- over the built-in configuration ----
printed -n 2 --lr 2e-4 --batch-size 24 --dtype fp32 --checkpoint-every 7
expect lr "$(value config.out 'j["optimizer"]["params"]["lr"]')" 0.0002
expect batch "$(value config.out 'j["train_batch_size"], j["train_micro_batch_size_per_gpu"], j["gradient_accumulation_steps"]')" "(24, 4, 3)"
expect dtype "$(value config.out 'j["bf16"]["enabled"]')" False
expect checkpoints "$(value config.out 'j["zerotorch"]["checkpoint"]')" "{'every_steps': 7, 'every_minutes': 0}"
printed -n 2 --batch-size 6
expect "a batch that four do not divide" "$(value config.out 'j["train_micro_batch_size_per_gpu"], j["gradient_accumulation_steps"]')" "(3, 1)"
printed -n 2 --micro-batch 1
expect "the batch stays" "$(value config.out 'j["train_batch_size"], j["gradient_accumulation_steps"]')" "(16, 8)"
printed -n 2 --dtype fp16
expect fp16 "$(value config.out 'j["fp16"]["enabled"], j["bf16"]["enabled"]')" "(True, False)"

# ---- over a file: what is not given stays ----
cat > file.json <<'END'
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4}},
 "zero_optimization": {"stage": 1}}
END
printed -n 2 --config file.json --lr 0.003 --micro-batch 4
expect "both rates" "$(value config.out 'j["optimizer"]["params"]["lr"], j["scheduler"]["params"]["warmup_max_lr"]')" "(0.003, 0.003)"
expect "the file's batch" "$(value config.out 'j["train_batch_size"], j["train_micro_batch_size_per_gpu"], j["gradient_accumulation_steps"]')" "(8, 4, 1)"
expect "the file's decay" "$(value config.out 'j["optimizer"]["params"]["weight_decay"]')" 0.1

# ---- refused ----
refused "the batch of 8 sequences is no multiple of 2 ranks x micro-batch 3" $text -n 2 --config file.json --micro-batch 3
refused "--batch-size 7 does not divide by 2 ranks" $text -n 2 --batch-size 7
refused "--dtype" $text --dtype float64
refused "--lr: got '-1'" $text --lr -1
sed 's/WarmupLR/OneCycle/; s/"warmup_max_lr": 0.01, "warmup_num_steps": 4/"cycle_min_lr": 0.001, "cycle_max_lr": 0.01/' file.json > cycle.json
refused "schedule OneCycle of the configuration gives the rates itself" $text --config cycle.json --lr 0.1
refused "--max-minutes" $text --max-minutes -3
[ -e runs ] && fail "a refused run left a folder"

# ---- the rate really is used: the same as in a file ----
sed 's/0\.01/0.003/g' file.json > slower.json
"$zero" train $run --steps 5 -n 2 --config file.json --lr 3e-3 --run-dir by_option -q > out 2>&1 || fail "--lr: $(cat out)"
"$zero" train $run --steps 5 -n 2 --config slower.json --run-dir by_file -q > out 2>&1 || fail "file: $(cat out)"
"$zero" runs compare by_option by_file > out || fail "--lr is not the file's lr: $(cat out)"

# ---- what a first run is: chosen for the machine, said, and overridden ----
"$zero" train --print-config > config.out 2> err || fail "--print-config of a first run: $(cat err)"
case $(value config.out 'j["scheduler"]["params"]["total_num_steps"]') in
  400 | 600 | 800 | 1000 | 1400) ;;
  *) fail "a first run has $(value config.out 'j["scheduler"]["params"]["total_num_steps"]') steps" ;;
esac
"$zero" train --print-config --preset gpt-11m > config.out 2> err || fail "--print-config of a preset: $(cat err)"
expect "steps of a preset" "$(value config.out 'j["scheduler"]["params"]["total_num_steps"]')" 220
timeout -s INT 20 "$zero" train $run --steps 9000000 --run-dir lengthy > out 2> err
grep -q '^machine    2 ranks x 1 thread, .* GFLOP/s each in bf16.*: about' out || fail "no estimate: $(cat out)"
grep -q 'fewer --steps, a smaller --preset' out || fail "a long run is not told of: $(cat out)"
# timeout sends its signal to the process and to its group: one wish, so that the run has a checkpoint.
grep -q 'checkpoint' err && ls lengthy/checkpoints/global_step* > /dev/null 2>&1 || fail "no checkpoint after timeout: $(cat out err)"
"$zero" train $run --steps 2 --run-dir slower_later -q > out 2>&1 || fail "a run: $(cat out)"
"$zero" train --resume slower_later --steps 4 --lr 1e-5 -q > out 2>&1 || fail "--resume --lr: $(cat out)"
expect "a lower rate" "$(tail -n 2 slower_later/metrics.jsonl | python3 -c 'import json, sys; print(max(json.loads(l).get("lr", 0) for l in sys.stdin) <= 1e-5)')" True

# ---- checkpoints by steps; the run named behind --resume; time that is up ----
"$zero" train $run --steps 4 -n 2 --checkpoint-every 2 --run-dir mine -q > out 2>&1 || fail "train: $(cat out)"
expect "checkpoints" "$(ls mine/checkpoints | grep -c global_step)" 2
expect "the newest but one" "$(ls -d mine/checkpoints/global_step2)" mine/checkpoints/global_step2
"$zero" train --resume mine --steps 100000 --max-minutes 0.02 > out 2>&1
expect "exit code when time is up" $? 0
grep -q 'stopped after 0.02 minutes and [0-9]* of 100000 steps, as --max-minutes says' out || fail "time is up: $(cat out)"
grep -q 'train --resume' out || fail "no way on is shown: $(cat out)"
expect "summary" "$(value mine/summary.json 'j["finished"], j["stopped_by"]')" "(False, 'max_minutes')"
steps=$(value mine/summary.json 'j["steps"]')
[ "$steps" -gt 4 ] || fail "no step before the time was up: $steps"
[ -d "mine/checkpoints/global_step$steps" ] || fail "no checkpoint of step $steps: $(ls mine/checkpoints)"
"$zero" train --resume=mine --steps $((steps + 1)) -q > out 2>&1 || fail "--resume=RUN: $(cat out)"
expect "finished" "$(value mine/summary.json 'j["finished"], j["steps"]')" "(True, $((steps + 1)))"
"$zero" train --restart mine --steps 1 -q > out 2>&1 || fail "--restart RUN: $(cat out)"
[ -d mine/before.1/checkpoints ] || fail "--restart RUN kept nothing"
refused "the run is named twice" --resume mine --run-dir by_file
refused "no run" --resume nothing_here

# ---- the best validation of a run that gets worse is kept ----
for i in $(seq 1 400); do echo "def f$i(x): return x + $i"; done > worse.py
cat > worse.json <<'END'
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1.0}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0, "warmup_num_steps": 15, "warmup_type": "linear"}}}
END
"$zero" train --data worse.py --cache-dir cache --preset gpt-tiny --seq 32 --layers 1 --steps 18 --eval-every 3 --eval-batches 2 \
  --config worse.json --keep-best --run-dir worse --sample-length 0 --no-tensorboard > out 2>&1 || fail "--keep-best: $(cat out)"
best=$(value worse/summary.json 'j["best_val_loss_step"]')
[ "$best" -lt 18 ] || fail "no validation is worse than the one before: $(cat out)"
expect "summary" "$(value worse/summary.json 'j["steps"], j["best_checkpoint"]')" "(18, '$PWD/worse/best/global_step$best')"
expect "smallest validation" "$(grep val_loss worse/metrics.jsonl | python3 -c 'import json, sys; print(min(json.loads(l)["val_loss"] for l in sys.stdin))')" \
  "$(value worse/summary.json 'j["best_val_loss"]')"
expect "best" "$(ls worse/best)" "$(printf 'global_step%s\nlatest' "$best")"
mv worse moved
"$zero" train --resume moved > out 2>&1 || fail "--resume of it: $(cat out)"
expect "steps of a run that is at its end" "$(value moved/summary.json 'j["steps"]')" 18
"$zero" train --resume moved --steps 19 > out 2>&1 || fail "--resume --steps: $(cat out)"
expect "the best of a run that goes on" "$(value moved/summary.json 'j["steps"], j["stopped_by"], j["best_checkpoint"]')" \
  "(19, None, '$PWD/moved/best/global_step$best')"
"$zero" train --restart moved --steps 1 -q > out 2>&1 || fail "--restart of it: $(cat out)"
[ -d moved/before.1/best/global_step$best ] && [ ! -e moved/best/global_step$best ] || fail "--restart loses the best: $(ls moved moved/before.1)"

# ---- traces of each start stay ----
tiny="--preset gpt-tiny --seq 32 --layers 1 --data worse.py --cache-dir cache --eval-batches 1 --sample-length 0 --no-tensorboard"
"$zero" train $tiny --steps 5 --trace --run-dir traced > out 2>&1 || fail "--trace: $(cat out)"
grep -q 'trace/rank0.json, ...: open them in' out || fail "--trace is not said: $(cat out)"
expect "steps" "$(value traced/trace/rank1.json 'sorted(e["args"]["what"] for e in j["traceEvents"] if e["name"] == "step" and e["args"]["what"] != "micro-batch")')" "['step 3', 'step 4']"
"$zero" train --resume traced --steps 9 -n 1 > out 2>&1 || fail "--trace of a resumed run: $(cat out)"
expect "traces" "$(ls traced/trace traced/trace.1 | tr '\n' ' ')" "traced/trace: rank0.json  traced/trace.1: rank0.json rank1.json "
expect "steps" "$(value traced/trace/rank0.json 'sorted(e["args"]["what"] for e in j["traceEvents"] if e["name"] == "step" and e["args"]["what"] != "micro-batch")')" "['step 8', 'step 9']"

# ---- what fits is chosen, and trains the same ----
tiny="--preset gpt-tiny --seq 32 --layers 1 --data worse.py --cache-dir cache --eval-batches 1 --sample-length 0 --no-tensorboard --steps 5"
curve() { grep -oE '"(step|loss|grad_norm|val_loss|lr)":[^,}]*' "$1/metrics.jsonl"; }
"$zero" train $tiny --run-dir plain > out 2>&1 || fail "plain run: $(cat out)"
"$zero" train $tiny --run-dir roomy --fit > out 2>&1 || fail "--fit: $(cat out)"
grep -q '^fit        as it is: ' out || fail "--fit of what fits: $(cat out)"
expect "curve" "$(curve roomy)" "$(curve plain)"
mkdir -p disk
"$zero" train $tiny --run-dir nothing --fit --memory 100MB > out 2>&1
expect "exit code" $? 2
grep -q -e '--fit: nothing that may be changed makes the run fit: with .* a host needs .* of 100.0 MB; --nvme DIR would let' out ||
  fail "--fit of what cannot: $(cat out)"
[ ! -e nothing ] || fail "a run folder of what cannot fit"

# ---- a mixture of texts ----
echo '{"mixture": [{"data": "itself.json", "weight": 1}]}' > itself.json
"$zero" train $tiny --data itself.json --run-dir itself > out 2>&1
expect "exit code of a mixture of itself" $? 2
grep -q "itself.json is a mixture itself" out || fail "a mixture of itself: $(cat out)"
mkdir -p texts && for i in $(seq 1 2000); do echo "def f$i(x): return $i"; done > texts/code.py
for i in $(seq 1 2000); do echo "And so it was, $i times over."; done > texts/words.txt
echo '{"mixture": [{"data": "code.py", "weight": 3}, {"data": "words.txt", "weight": 1}]}' > texts/mix.json
tiny="--preset gpt-tiny --seq 32 --layers 1 --cache-dir cache --eval-batches 2 --sample-length 0 --no-tensorboard --steps 6 --batch-size 8"
"$zero" train $tiny --data texts/mix.json -n 2 --run-dir mixed > out 2>&1 || fail "mixture: $(cat out)"
grep -q "75.0 % of the sequences: .*texts/code.py" out || fail "a mixture is not described: $(head -8 out)"
"$zero" train $tiny --data texts/mix.json -n 1 --run-dir mixed1 -q > out 2>&1 || fail "mixture on one rank: $(cat out)"
"$zero" train $tiny --data texts/mix.json -n 2 --stage 0 --run-dir mixed0 -q > out 2>&1 || fail "mixture at stage 0: $(cat out)"
expect "curve of a mixture at stage 0" "$(curve mixed0)" "$(curve mixed)"
"$zero" train $tiny --data texts/code.py -n 2 --run-dir code -q > out 2>&1 || fail "code alone: $(cat out)"
[ "$(curve code)" != "$(curve mixed)" ] || fail "a mixture is one of its texts"
OMP_NUM_THREADS=1 "$zero" train --resume mixed --steps 8 -q > out 2>&1 || fail "--resume of a mixture: $(cat out)"
"$zero" eval mixed > out 2>&1; expect "exit code of zero eval of a mixture" $? 2
grep -q "mix.json is a mixture; evaluate on one of its corpora" out || fail "zero eval: $(cat out)"
"$zero" eval mixed --data texts/words.txt > out 2>&1 || fail "zero eval of one of its corpora: $(cat out)"
cp texts/mix.json texts/kept.json
sed -i 's/"weight": 3/"weight": 2/' texts/mix.json
"$zero" train --resume mixed --steps 9 > out 2>&1; expect "exit code with another mixture" $? 2
grep -q "is not what the run .*mixed learnt from" out || fail "another mixture: $(cat out)"
cp texts/kept.json texts/mix.json
"$zero" train --resume mixed --steps 9 -q > out 2>&1 || fail "--resume of the mixture as it was: $(cat out)"
rm -r cache && "$zero" train --resume mixed --steps 10 -q > out 2>&1 || fail "--resume with an empty cache: $(cat out)"
# Another text of the same size, packed by somebody else.
sed -i 's/And so it was/AND SO IT WAS/' texts/words.txt
"$zero" train --data texts/words.txt --cache-dir cache --pack-only > out 2>&1 || fail "--pack-only: $(cat out)"
"$zero" train --resume mixed --steps 11 > out 2>&1; expect "exit code with another text in the mixture" $? 2
grep -q "is not what the run .*mixed learnt from" out || fail "another text in the mixture: $(cat out)"
for bad in '{"mixture": [{"data": "code.py", "weight": 1},]}' '{"Mixture": [{"data": "code.py", "weight": 1}]}' \
  '{"mixture": [{"data": "code.py", "weight": NaN}]}' '{"mixtures": [{"data": "code.py", "weight": 1}]}' '{"mixture": [{"data": "", "weight": 1}]}' '{"mixture": []}' '{"mixture": [{"data": "code.py"}]}' '{"mixture": [{"data": "code.py", "weight": "x"}]}' \
  '{"mixture": [{"data": "code.py", "weight": 1}], "seed": 3}' '{"mixture": [{"data": "gone.py", "weight": 1}]}'; do
  echo "$bad" > texts/bad.json
  "$zero" train $tiny --data texts/bad.json --run-dir bad > out 2>&1; expect "exit code of $bad" $? 2
  [ ! -e bad ] || fail "a run folder of $bad"
done

# ---- results that are kept, and documents that do not see each other ----
mkdir -p notes && for i in $(seq 1 400); do echo "Note $i: $((i * i)) is the square of $i." > "notes/n$i.txt"; done
tiny="--preset gpt-tiny --seq 64 --cache-dir cache --eval-batches 2 --sample-length 0 --no-tensorboard --steps 4 --batch-size 8 -n 2 --data notes"
"$zero" train $tiny --run-dir whole -q > out 2>&1 || fail "notes: $(cat out)"
"$zero" train $tiny --run-dir kept --recompute 1 --recompute-keep products -q > out 2>&1 || fail "--recompute-keep: $(cat out)"
expect "curve with results that are kept" "$(curve kept)" "$(curve whole)"
"$zero" train $tiny --run-dir apart --separate-documents > out 2>&1 || fail "--separate-documents: $(cat out)"
grep -q "documents, which token 0 separates, do not see each other" out || fail "separate documents are not described: $(cat out)"
[ "$(curve apart)" != "$(curve whole)" ] || fail "--separate-documents changes nothing"
"$zero" train $tiny --run-dir apart0 --stage 0 --recompute 1 --recompute-keep attention --separate-documents -q > out 2>&1 || fail "stage 0: $(cat out)"
expect "curve of separate documents at stage 0" "$(curve apart0)" "$(curve apart)"
"$zero" eval apart > out 2>&1 || fail "zero eval of separate documents: $(cat out)"
loss_of() { "$zero" eval "$@" --json 2>/dev/null | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p'; }
mkdir documents && for i in $(seq 200); do echo "one two three $((i * 7919))" > "documents/$i.txt"; done
[ -n "$(loss_of apart --data documents)" ] || fail "zero eval --data: $("$zero" eval apart --data documents --json 2>&1)"
expect "loss of a run with separate documents" "$(loss_of apart --data documents)" "$(loss_of apart --data documents --separate-documents)"
[ "$(loss_of whole --data documents --separate-documents)" != "$(loss_of whole --data documents)" ] || fail "zero eval --separate-documents changes nothing"
! "$zero" eval apart --separate-documents > out 2>&1 || fail "zero eval --separate-documents of the run's own text passes"
grep -q "is of a text that is given with --data" out || fail "zero eval --separate-documents: $(cat out)"
"$zero" train --resume apart --steps 5 -q > out 2>&1 || fail "--resume of separate documents: $(cat out)"
expect "separator of the run" "$(value apart/plan.json 'j["separator"]')" 0
"$zero" train --resume apart0 --steps 5 --recompute 0 --recompute-keep none -q > out 2>&1 || fail "--resume at stage 0: $(cat out)"
expect "curve after --resume" "$(curve apart0)" "$(curve apart)"
"$zero" train $tiny --run-dir apart9 --separate-documents --separator 9 -q > out 2>&1 || fail "--separator: $(cat out)"
expect "curve of a separator that is nowhere" "$(curve apart9)" "$(curve whole)"
"$zero" train $tiny --seq 512 --run-dir long -q > out 2>&1 || fail "long sequences: $(cat out)"
ZERO_LOG_LEVEL=info "$zero" train $tiny --seq 512 --run-dir far --recompute 1 --nvme-activations disk/far > out 2>&1 || fail "--nvme-activations: $(cat out)"
grep -q "activations on NVMe: in '.*disk/far'" out || fail "--nvme-activations is not said: $(cat out)"
expect "curve with activations on NVMe" "$(curve far)" "$(curve long)"
expect "files that are left" "$(ls disk/far)" ""
refused "--nvme-activations: is for what blocks keep that are computed again; give --recompute, too" $tiny --nvme-activations disk/far
refused "--recompute-keep: keeps results of blocks that are computed again; give --recompute, too" $tiny --recompute-keep attention
"$zero" train --resume kept --steps 5 --recompute 0 -q > out 2>&1 || fail "--resume --recompute 0 of a run that keeps: $(cat out)"
refused "--separator 300: the model's vocabulary has 256" $tiny --separate-documents --separator 300
refused "--recompute-keep: " $tiny --recompute 1 --recompute-keep everything
refused "--separator: has an effect with --separate-documents only" $tiny --separator 7
refused "--separate-documents excludes --resume" --resume whole --separate-documents
mkdir -p bins && python3 -c "
import array
for name in ('train', 'val'):
    array.array('H', [(i * 7) % 50 for i in range(3000)]).tofile(open(f'bins/{name}.bin', 'wb'))"
echo '{"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": 50}' > small.json
bins="--model small.json --data bins --seq 32 --cache-dir cache --eval-batches 1 --no-tensorboard --steps 2 --batch-size 4 -n 2"
refused "does not say which token is between documents" $bins --separate-documents
"$zero" train $bins --separate-documents --separator 49 --run-dir bins_apart -q > out 2>&1 || fail "--separator of token files: $(cat out)"

[ "$failures" = 0 ] && echo "options of zero train: all well"
exit $((failures > 0))
