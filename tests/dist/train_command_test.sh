#!/bin/bash
# `zero train` from outside: files, one curve over ranks and stages, stopping, bad input.
# Usage: train_command_test.sh <path of zero>
set -u
zero=$(realpath "$1")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1

for i in $(seq 1 3000); do echo "def f$i(x, y):  # $((i * 7919 % 1000))"; echo "    return x * $i + y"; done > text.py
common="--preset gpt-tiny --data text.py --cache-dir cache --steps 4 --eval-batches 2 --sample-length 8"
# What must not depend on ranks, stage or store.
curve() { grep -oE '"(step|loss|grad_norm|val_loss|lr)":[^,}]*' "$1/metrics.jsonl"; }


# ---- a run leaves what it says, and only rank 0 speaks ----
"$zero" train $common -n 2 --run-dir two > two.out 2> two.err
expect "exit code" $? 0
expect "standard error" "$(cat two.err)" ""
for file in config.json environment.json metrics.jsonl summary.json sample.txt; do
  [ -s "two/$file" ] || fail "two/$file is missing or empty"
done
ls two/tensorboard/events.out.tfevents.* > /dev/null 2>&1 || fail "no TensorBoard events"
expect "steps recorded" "$(grep -c '"loss"' two/metrics.jsonl)" 4
expect "finished" "$(grep -c '"finished": true' two/summary.json)" 1
expect "headings" "$(grep -c '^zerotorch' two.out)" 1
expect "results" "$(grep -c '^result' two.out)" 1
grep -q $'\x1b' two.out && fail "terminal codes in a file"

# ---- more, less, and for programs ----
expect "lines about traffic" "$(grep -c '^traffic' two.out)" 0
"$zero" train $common -n 2 --verbose --no-tensorboard --run-dir verbose > verbose.out 2>&1 || fail "--verbose: $(tail -3 verbose.out)"
expect "lines about traffic, -v" "$(grep -c '^traffic' verbose.out)" 1
"$zero" train $common -n 2 --json --no-tensorboard --run-dir json > json.out 2> json.err || fail "--json: $(cat json.err)"
cmp -s json.out json/summary.json || fail "--json is not the summary: $(diff json.out json/summary.json | head -3)"
"$zero" train $common --json -v > both.out 2>&1; expect "exit code of --json -v" $? 2

noisy="--preset gpt-tiny --data text.py --cache-dir cache --steps 6 --eval-batches 1 --sample-length 0 --batch-size 8 --micro-batch 2 --no-tensorboard -q"
noise() { grep -oE '"gradient_noise_scale":[^,}]*' "$1/metrics.jsonl"; }
"$zero" train $noisy -n 2 --noise --run-dir noise2 > noise.out 2>&1 || fail "--noise: $(cat noise.out)"
"$zero" train $noisy -n 4 --stage 1 --noise --run-dir noise4 > noise.out 2>&1 || fail "--noise on four ranks: $(cat noise.out)"
[ -n "$(noise noise2)" ] || fail "no noise scale: $(tail -2 noise2/metrics.jsonl)"
expect "noise scale on four ranks" "$(noise noise4)" "$(noise noise2)"
"$zero" train $noisy -n 2 --noise --steps 3 --run-dir noisecut > noise.out 2>&1 && OMP_NUM_THREADS=1 "$zero" train --resume noisecut --steps 6 -q > noise.out 2>&1 || fail "--noise resumed: $(cat noise.out)"
"$zero" train $noisy -n 1 --batch-size 2 --noise --run-dir noise1 > noise.out 2>&1; expect "exit code of --noise with one micro-batch" $? 2
grep -q "has one micro-batch, and there is nothing to compare" noise.out || fail "--noise with one micro-batch: $(cat noise.out)"

# ---- one curve: 1, 2 and 4 ranks, stages, stores, another launcher ----
curve two > want
check_curve() {
  curve "$1" > got
  cmp -s want got || fail "$1: other losses than on two ranks at stage 3"
}
run() { "$zero" train $common --quiet --run-dir "$@" > run.out 2>&1 || { fail "$1: exit code $?"; cat run.out; }; check_curve "$1"; }
run one -n 1
run four -n 4
run stage0 -n 2 --stage 0
run stage2 -n 2 --stage 2
run copying -n 2 --store copying
export WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 20000))
RANK=1 "$zero" train $common --quiet --run-dir by_hand > rank1.out 2>&1 &
RANK=0 "$zero" train $common --quiet --run-dir by_hand > rank0.out 2>&1 || fail "started by hand: $(cat rank0.out)"
wait $! || fail "rank 1, started by hand: $(cat rank1.out)"
unset WORLD_SIZE MASTER_PORT
expect "output of rank 1" "$(cat rank1.out)" ""
check_curve by_hand

# ---- a signal ends all ranks at a step, and the run says so ----
stop() { # name, signal, exit code, options
  local name=$1 signal=$2 want=$3; shift 3
  "$zero" train $common --steps 1000000 --run-dir "$work/$name" "$@" > "$name.out" 2>&1 &
  local pid=$!
  for _ in $(seq 1 300); do grep -q '"loss"' "$name/metrics.jsonl" 2>/dev/null && break; sleep 0.1; done
  kill -"$signal" "$pid"
  wait "$pid"
  expect "exit code after $signal" $? "$want"
  grep -q "\"stopped_by\": \"SIG$signal\"" "$name/summary.json" || fail "$name: summary.json does not say SIG$signal"
  grep -q "^stopped by SIG$signal" "$name.out" || { fail "$name: no words about it"; cat "$name.out"; }
  # By the run's full path: a bare name may occur in the command line of somebody else's process.
  pgrep -f -- "--run-dir $work/$name" > /dev/null && fail "$name: processes are left"
}
stop interrupted INT 130 -n 2
stop terminated TERM 143 -n 3
stop alone INT 130 -n 1
expect_nothing_in_shm

# ---- --stage takes the default of overlap_comm along, also from files that only we can read ----
echo '{"train_batch_size": 4, "zero_optimization": {"stage": 1,},} // trailing commas' > trailing.json
echo '{"config_params": {"train_batch_size": 4, "zero_optimization": {"stage": 1}}}' > wrapped.json
echo '{"train_batch_size": 4, "zero_optimization": {"stage": 1, "overlap_comm": false},}' > blocking.json
overlap() { "$zero" train --config "$1" --stage 3 --print-config | sed -n 's/.*"overlap_comm": \([a-z]*\),/\1/p'; }
expect "overlap_comm left open, trailing commas" "$(overlap trailing.json)" null
expect "overlap_comm left open, wrapped" "$(overlap wrapped.json)" null
expect "overlap_comm as given" "$(overlap blocking.json)" false

# ---- bad input: one message, exit code 2, no rank started, no run folder ----
echo "x = 1" > tiny.py
echo '{"zero_optimization": {"stge": 3}, "train_batch_size": 4}' > typo.json
echo '{"train_batch_size": 5}' > five.json
touch a_file
refused() { # part of the message, options
  local want=$1; shift
  "$zero" train "$@" > bad.out 2> bad.err
  expect "exit code of 'zero train $*'" $? 2
  grep -qF -- "$want" bad.err || fail "'zero train $*' says '$(cat bad.err)', want '$want'"
  grep -q '^zero: error: ' bad.err || fail "'zero train $*': no 'zero: error:'"
  [ -e runs ] && fail "'zero train $*' left a run folder"
}
given="--data text.py --cache-dir cache"
refused "there is no file or folder" --data nowhere
refused "too few for sequences" --data tiny.py --cache-dir cache
refused "did you mean 'stage'" $given --config typo.json
refused "train_batch_size (5)" $given --config five.json
refused "cannot read" $given --config missing.json
refused "want one of" $given --preset gpt-0
refused "not a multiple of heads" $given --dim 100 --heads 3
refused "at most" $given -n 1000
refused "run's folder" $given --run-dir a_file/run
refused "already holds a run" $given --run-dir two
refused "--stage" $given --stage 4
refused "has no option '--no-such-option'" $given --no-such-option
"$zero" frobnicate > bad.out 2>&1
expect "exit code of an unknown command" $? 2

[ "$failures" = 0 ] && echo "zero train: all well"
exit $((failures > 0))
