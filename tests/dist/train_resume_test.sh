#!/bin/bash
# `zero train --resume`: the same run, whatever ended it. Usage: train_resume_test.sh <zero>
zero=$1
source "$(dirname "$0")/../support/command_test.sh"
trap 'umount "$work/small" 2> /dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1

for i in $(seq 1 3000); do echo "def f$i(x, y):  # $((i * 7919 % 1000))"; echo "    return x * $i + y"; done > text.py
cat > config.json <<'END'
{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 12, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3}, "zerotorch": {"checkpoint": {"every_steps": 4, "every_minutes": 0, "keep_last": 3}}}
END
steps=30
common="--preset gpt-tiny --data text.py --cache-dir cache --config config.json --steps $steps --eval-batches 2 --eval-every 7 --sample-length 4"
# Everything but times.
curve() { grep -oE '"(step|loss|grad_norm|val_loss|lr|tokens)":[^,}]*' "$1/metrics.jsonl"; }
final() { # folder: the last step's weights and states are those of the run that was never interrupted
  curve "$1" > got
  cmp -s want got || { fail "$1: other metrics than without an interruption"; diff want got | head -5; }
  "$zero" ckpt diff "$1/checkpoints/global_step$steps" "uninterrupted/checkpoints/global_step$steps" > diff.out 2>&1
  # A rank's random stream is there as often as there are ranks.
  grep -E '^ +(weight|exp_avg|exp_avg_sq|buffer|gradient_sum)' diff.out && fail "$1: other weights or states"
  grep -qE '^[0-9]+ of [0-9]+ tensors are equal' diff.out || fail "$1: no comparison: $(cat diff.out)"
  "$zero" ckpt verify "$1/checkpoints" > verify.out 2>&1 || fail "$1: $(cat verify.out)"
}
resume() { # folder, more options
  "$zero" train --resume --quiet --run-dir "$@" > resume.out 2>&1 || { fail "resume of $1: exit code $?"; cat resume.out; }
}
wait_for_steps() { # folder, steps
  for _ in $(seq 1 600); do
    [ "$(grep -c '"loss"' "$1/metrics.jsonl" 2>/dev/null || true)" -ge "$2" ] 2>/dev/null && return
    sleep 0.02
  done
  fail "$1: $2 steps did not come"
}
kill_rank() { # of which command; comes back when that has other ranks, or has ended
  local before rank
  before=$(pgrep -P "$1")
  for rank in $before; do kill -9 "$rank" && break; done
  for _ in $(seq 1 600); do
    kill -0 "$1" 2> /dev/null || return
    [ -n "$(pgrep -P "$1")" ] && [ -z "$(comm -12 <(sort <<< "$before") <(pgrep -P "$1" | sort))" ] && return
    sleep 0.05
  done
  fail "$1: a rank was killed, and nothing came of it"
}

"$zero" train $common -n 2 --quiet --run-dir uninterrupted > out 2>&1 || { fail "exit code $?"; cat out; exit 1; }
curve uninterrupted > want
expect "kept checkpoints" "$(ls uninterrupted/checkpoints | grep -c global_step)" 3
events=$(cat uninterrupted/tensorboard/events.out.tfevents.* | wc -c)

# ---- all processes killed at once, as by a power cut, twice ----
long="$common --quiet"
setsid "$zero" train $long -n 2 --run-dir cut > cut.out 2>&1 &
pid=$!
wait_for_steps cut 9
kill -9 "$pid"; wait "$pid" 2> /dev/null  # the ranks die with it
while pgrep -f -- "$work/cut" > /dev/null; do sleep 0.05; done
done_before=$(grep -c '"loss"' cut/metrics.jsonl)
[ "$done_before" -lt $steps ] || echo "note: the run was over before it was killed"
resume cut
final cut
expect "bytes of TensorBoard events after a power cut" "$(cat cut/tensorboard/events.out.tfevents.* | wc -c)" "$events"

# ---- ranks that fail, and a run that goes on by itself: before its first checkpoint, and after it ----
"$zero" train $common --max-restarts 2 -n 2 --run-dir again > again.out 2>&1 &
pid=$!
wait_for_steps again 2
kill_rank "$pid"
wait_for_steps again 9
kill_rank "$pid"
wait "$pid"
expect "exit code of a run that went on by itself" $? 0
grep -q "zero train: starting all ranks again (2 of 2)" again.out || echo "note: the run was over before it was killed"
final again
"$zero" train $common --steps 1000000 --max-restarts 1 -n 2 --quiet --run-dir again2 > again.out 2>&1 &
pid=$!
wait_for_steps again2 9
# A third time where the second found no rank yet.
for _ in 1 2 3; do kill -0 "$pid" 2> /dev/null && kill_rank "$pid"; done
wait "$pid"
expect "exit code when restarts are used up" $? 137
grep -q 'zero train: `.* train --resume .*again2` goes on from the checkpoint after' again.out ||
  fail "it does not say how the run goes on: $(cat again.out)"

"$zero" train $common --steps 1000000 --checkpoint-every 1000000 -n 2 --quiet --run-dir unsaved > unsaved.out 2>&1 &
pid=$!
wait_for_steps unsaved 1
kill_rank "$pid"
wait "$pid"
expect "exit code before the first checkpoint" $? 137
grep -q 'there is no checkpoint yet; `.* train --restart .*unsaved` begins it again' unsaved.out || fail "$(cat unsaved.out)"

# ---- under a launcher that starts the ranks again with the same command ----
"$zero" launch -n 2 --max-restarts 2 "$zero" train $common --quiet --run-dir launched > launched.out 2>&1 &
pid=$!
wait_for_steps launched 2
kill_rank "$pid"
wait_for_steps launched 9
kill_rank "$pid"
wait "$pid"
expect "exit code of a run that its launcher started again ($(tail -3 launched.out))" $? 0
final launched
"$zero" launch -n 2 sh -c 'ZERO_RESTART_COUNT=1 exec "$@"' sh "$zero" train $common --quiet > nameless.out 2>&1 &&
  fail "a run without a folder was started again"
grep -q -e "--run-dir: the ranks have been started again" nameless.out || fail "$(cat nameless.out)"

# ---- the limit of time is of all starts together ----
timeout 60 "$zero" train $common --steps 1000000 --max-restarts 1 --max-minutes 0.15 -n 2 --quiet --run-dir limited > limited.out 2>&1 &
pid=$!
wait_for_steps limited 2
kill_rank "$(pgrep -P "$pid" | head -n 1)"
wait "$pid"
expect "exit code of a run that was started again, after its time" $? 0
grep -q '"stopped_by": "max_minutes"' limited/summary.json || fail "not stopped by its limit: $(cat limited.out)"

# ---- fewer steps than were done: nothing is changed ----
before=$(find cut -type f -exec cksum {} + | sort)
"$zero" train --resume cut --steps 1 --quiet > fewer.out 2>&1
expect "exit code of fewer steps than were done" $? 2
grep -q -e "--steps 1: the run has done [0-9]* steps already" fewer.out || fail "fewer steps: $(cat fewer.out)"
expect "files after fewer steps" "$(find cut -type f -exec cksum {} + | sort)" "$before"

# ---- metrics that end inside a line: its rest is not glued to the next one ----
cp -r cut half && truncate -s -10 half/metrics.jsonl
"$zero" train --resume half --steps $((steps + 1)) --quiet > half.out 2>&1 || fail "resume after half a line: $(cat half.out)"
python3 -c 'import json
for line in open("half/metrics.jsonl"): json.loads(line)' || fail "a line that is no JSON"

# ---- before the first checkpoint; the record begins again ----
sed 's/"every_steps": 4/"every_steps": 1000000/' config.json > never.json
"$zero" train ${common/config.json/never.json} -n 2 --quiet --run-dir early > early.out 2>&1 &
pid=$!
wait_for_steps early 2
kill -9 "$pid"; wait "$pid" 2> /dev/null
cp early/metrics.jsonl early.metrics
"$zero" train --resume --quiet --run-dir early > early.out 2>&1
expect "exit code of a resume without a checkpoint" $? 2
grep -q "has no checkpoint; it ended at step .* there is nothing to go on from. To start it over: .* train --restart" early.out || fail "$(cat early.out)"
cp -r early early2 && rm early2/metrics.jsonl
"$zero" train --resume --quiet --run-dir early2 > early2.out 2>&1
expect "exit code of a resume without a checkpoint and a record" $? 2
[ -e early2/before.1 ] && fail "a run without a checkpoint and a record starts over"
hint=$(grep -o '[^ ]* train --restart --run-dir [^ ]*' early.out)
sh -c "$hint --quiet" > early.out 2>&1 || fail "the hint '$hint': $(cat early.out)"
final early
cmp -s early.metrics early/before.1/metrics.jsonl || fail "the old metrics are not kept: $(ls early early/before.1)"
expect "bytes of TensorBoard events" "$(cat early/tensorboard/events.out.tfevents.* | wc -c)" "$events"

# ---- checkpoints that are gone or not whole: nothing is started over, nothing is touched ----
cp -r cut lost
refuses_to_go_on() { # words
  local before after
  before=$(find lost -type f -exec cksum {} + | sort)
  "$zero" train --resume --quiet --run-dir lost > lost.out 2>&1
  expect "exit code where $1" $? 2
  grep -qF -- "$1" lost.out || fail "want '$1', got $(cat lost.out)"
  after=$(find lost -type f -exec cksum {} + | sort)
  expect "files where $1" "$after" "$before"
}
latest=$(cat lost/checkpoints/latest)
mv "lost/checkpoints/$latest" held
refuses_to_go_on "is '$latest', which is not there"
mv held "lost/checkpoints/$latest"
mkdir held && for c in lost/checkpoints/global_step*; do mkdir "held/$(basename "$c")"; mv "$c"/rank_00001* "held/$(basename "$c")"; done
refuses_to_go_on "none of the checkpoints in"
for c in lost/checkpoints/global_step*; do mv "held/$(basename "$c")"/* "$c"; done
rm -r lost/checkpoints
refuses_to_go_on "the last one was '$latest'"
"$zero" train --restart --quiet --run-dir lost > lost.out 2>&1 || fail "restart: $(cat lost.out)"
final lost
cmp -s cut/metrics.jsonl lost/before.1/metrics.jsonl || fail "a run that starts over loses its metrics"

# ---- a loss that is not a number: an error, everything written, no checkpoint of it ----
sed 's/"bf16": {"enabled": true}/"optimizer": {"type": "SGD", "params": {"lr": 1e30}}/; s/"every_steps": 4/"every_steps": 1/' config.json > nan.json
"$zero" train ${common/config.json/nan.json} -n 2 --run-dir nan > nan.out 2>&1
expect "exit code of a run that diverged" $? 1
grep -q "zero: error: the loss of step [0-9]* or its gradient is not a number: the run has diverged" nan.out || fail "$(tail -3 nan.out)"
expect "times it is said" "$(grep -c 'has diverged' nan.out)" 1
"$zero" train ${common/config.json/nan.json} --max-restarts 3 -n 2 --run-dir nan4 > nan.out 2>&1
expect "exit code of a run that diverged and might start again" $? 1
grep -q "starting all ranks again" nan.out && fail "it diverges a second time"
grep -q '"diverged": true' nan/summary.json || fail "no word in summary.json"
at=$(grep -o '"steps": [0-9]*' nan/summary.json | grep -o '[0-9]*')
[ "$at" -lt $steps ] || fail "it went on"
[ ! -e "nan/checkpoints/global_step$at" ] || fail "a checkpoint of a model of NaN"
"$zero" train ${common/config.json/nan.json} -n 2 --keep-going --quiet --run-dir nan2 > nan.out 2>&1 || fail "--keep-going: $(cat nan.out)"
expect "steps" "$(grep -c '"loss"' nan2/metrics.jsonl)" $steps

# In bf16 such steps are skipped: the parameters are no better for it.
sed 's/"bf16": {"enabled": true}/"bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e30}}/; s/"every_steps": 4/"every_steps": 1/' config.json > nan.json
"$zero" train ${common/config.json/nan.json} -n 2 --quiet --run-dir nan3 > nan.out 2>&1
expect "exit code of a run in bf16 that diverged" $? 1
grep -q '"diverged": true' nan3/summary.json || fail "no word in summary.json: $(cat nan.out)"
[ "$(ls nan3/checkpoints 2>/dev/null | grep -c global_step)" -le 2 ] || fail "checkpoints of a model of NaN: $(ls nan3/checkpoints)"

# ---- nothing left to do: what was measured stays; an older checkpoint: from there ----
cp -r uninterrupted done
resume done
cmp -s uninterrupted/summary.json done/summary.json || fail "another summary: $(diff uninterrupted/summary.json done/summary.json)"
rm done/summary.json && resume done
expect "last loss without a step" "$(grep -o '"train_loss_last_step": [^,]*' done/summary.json)" \
  "$(grep -o '"train_loss_last_step": [^,]*' uninterrupted/summary.json)"
grep -q '"ms_per_step": null' done/summary.json || fail "times of steps that were not made"
cp -r uninterrupted back && echo "global_step$((steps - 2))" > back/checkpoints/latest
resume back
grep -q "steps already" resume.out && fail "it has steps to make: $(cat resume.out)"
final back

# ---- a folder whose metrics or plan are gone is a run's all the same ----
cp -r cut lost2 && rm lost2/metrics.jsonl
"$zero" train $common -n 2 --quiet --run-dir lost2 > lost.out 2>&1
expect "exit code of a new run in a folder with checkpoints" $? 2
grep -q "already holds a run" lost.out || fail "$(cat lost.out)"
"$zero" train --resume --run-dir lost2 > lost.out 2>&1 || fail "resume without metrics: $(cat lost.out)"
grep -q "metrics.jsonl has 0 of the" lost.out || fail "nothing said of the metrics: $(cat lost.out)"
"$zero" ckpt diff lost2/checkpoints cut/checkpoints > diff.out
grep -qE "^ +(weight|exp_avg)" diff.out && fail "other weights without metrics: $(head -3 diff.out)"
rm lost2/plan.json
"$zero" train --resume --quiet --run-dir lost2 > lost.out 2>&1
grep -q "ckpt export .*lost2 DIR writes the weights" lost.out || fail "$(cat lost.out)"

# ---- damaged checkpoints, all of them: refused, and not a byte of the folder is another ----
rm -rf lost && cp -r cut lost
for file in lost/checkpoints/global_step*/rank_00000.safetensors; do
  printf '\x55' | dd of="$file" bs=1 seek=6000 conv=notrunc status=none
done
before=$(find lost -type f -exec cksum {} + | sort)
"$zero" train --resume --quiet --steps 50 --run-dir lost > lost.out 2>&1
expect "exit code where all checkpoints are damaged" $? 1
grep -q "To start it over: " lost.out || fail "$(cat lost.out)"
grep -q "goes on from the checkpoint" lost.out && fail "a hint that fails again: $(cat lost.out)"
expect "files where all checkpoints are damaged" "$(find lost -type f -exec cksum {} + | sort)" "$before"

# ---- the last checkpoint cannot be written: everything else is, and there is a way out ----
"$zero" train $common -n 2 --run-dir waits > waits.out 2>&1 &
pid=$!
wait_for_steps waits 3
mkdir -p waits/checkpoints/global_step$steps && echo mine > waits/checkpoints/global_step$steps/file
for _ in $(seq 1 600); do grep -q "Trying again for" waits.out && break; sleep 0.05; done
rm -r waits/checkpoints/global_step$steps
wait "$pid"
expect "exit code once there is room" $? 0
final waits

# ---- a disk without a byte left: training goes on, and nothing of it is lost (where this may mount one) ----
# No checkpoint is written meanwhile: one that fails is removed, and the room it leaves would be enough for the rest.
mkdir small
if mount -t tmpfs -o size=20m none small 2> /dev/null; then
  "$zero" train ${common/config.json/never.json} --steps 400 -n 2 --run-dir small/r > small.out 2>&1 &
  pid=$!
  wait_for_steps small/r 3
  dd if=/dev/zero of=small/fill bs=1M 2> /dev/null
  for _ in $(seq 1 1200); do grep -q "Trying again for" small.out && break; sleep 0.05; done
  grep -q "its lines are kept in memory" small.out || fail "nothing said of the metrics: $(tail -5 small.out)"
  rm small/fill
  wait "$pid"
  expect "exit code once the disk has room" $? 0
  [ -e small/r/checkpoints/global_step400/manifest.json ] || fail "no checkpoint: $(tail -5 small.out)"
  grep -q '"steps": 400' small/r/summary.json || fail "no summary: $(tail -5 small.out)"
  resume small/r --steps 402
  expect "steps that a full disk had not taken" "$(grep -c '"loss"' small/r/metrics.jsonl)" 402
  umount small
fi

# ---- nobody reads what is printed: as when the terminal goes ----
( "$zero" train $common -n 2 --run-dir piped 2> piped.err; echo $? > piped.code ) | sed '/^step *1\/.*loss/q' > /dev/null
expect "exit code with a closed pipe" "$(cat piped.code)" 141
[ -e piped/checkpoints/latest ] || fail "no checkpoint: $(cat piped.err)"
resume piped
final piped

# ---- checkpoints by time: so short that each step takes longer ----
sed 's/"every_steps": 4, "every_minutes": 0, "keep_last": 3/"every_minutes": 0.00001, "keep_last": 0/' config.json > timed.json
"$zero" train ${common/config.json/timed.json} -n 2 --quiet --run-dir timed > timed.out 2>&1 || { fail "timed: exit code $?"; cat timed.out; }
[ "$(ls timed/checkpoints | grep -c global_step)" -ge 3 ] || fail "checkpoints by time: $(ls timed/checkpoints)"
final timed

# ---- a checkpoint that cannot be written is reported, and training goes on; so do the later ones ----
"$zero" train $common -n 2 --run-dir blocked > blocked.out 2>&1 &
pid=$!
wait_for_steps blocked 3
mkdir -p blocked/checkpoints/global_step24 && echo mine > blocked/checkpoints/global_step24/file
wait "$pid"
expect "exit code with a checkpoint that failed" $? 0
grep -q "no checkpoint: .*global_step24' is there and is no checkpoint" blocked.out || fail "nothing said: $(cat blocked.out)"
[ -e blocked/checkpoints/global_step28/manifest.json ] || fail "no checkpoint after the one that failed: $(ls blocked/checkpoints)"
final blocked

# ---- stopped by a signal: a checkpoint of the very step; other numbers of ranks, stages and stores go on ----
stopped() { # name, signal, exit code
  "$zero" train $common -n 2 --grace 60 --run-dir "$work/$1" > "$1.out" 2>&1 &
  local pid=$!
  wait_for_steps "$1" 5
  local begin=$SECONDS
  kill -"$2" "$pid"
  wait "$pid"
  expect "exit code after $2" $? "$3"
  [ $((SECONDS - begin)) -le 60 ] || fail "$1: longer than --grace"
  grep -q "checkpoint complete .* after the signal" "$1.out" || { fail "$1: no words about the checkpoint"; tail -5 "$1.out"; }
  local at
  at=$(grep -o '"steps": [0-9]*' "$1/summary.json" | grep -o '[0-9]*')
  [ -e "$1/checkpoints/global_step$at/manifest.json" ] || fail "$1: no checkpoint of step $at: $(ls "$1/checkpoints")"
}
stopped terminated TERM 143
resume terminated -n 3 --stage 1
final terminated
stopped interrupted INT 130
resume interrupted -n 1 --store copying
final interrupted

# ---- a run that was moved, and one whose packed text is gone ----
stopped moved TERM 143
mv moved elsewhere
rm -rf cache
resume elsewhere
final elsewhere

# ---- a damaged newest checkpoint: the one before it, and the same end ----
stopped damaged TERM 143
newest=damaged/checkpoints/$(cat damaged/checkpoints/latest | grep -o 'global_step[0-9]*')
printf '\x55' | dd of="$(ls "$newest"/*.safetensors | head -1)" bs=1 seek=6000 conv=notrunc status=none
resume damaged
grep -q "fell back" resume.out || fail "nothing said about the damaged checkpoint: $(cat resume.out)"
final damaged

# ---- a run that is over goes on for more steps ----
"$zero" train --resume --quiet --run-dir cut > over.out 2>&1 || fail "resume of a finished run: $(cat over.out)"
final cut
"$zero" train --resume --quiet --run-dir cut --steps 33 > more.out 2>&1 || fail "more steps: $(cat more.out)"
expect "steps" "$(grep -c '"loss"' cut/metrics.jsonl)" 33
expect "steps logged twice" "$(grep -o '"step":[0-9]*,"loss"' cut/metrics.jsonl | sort | uniq -d)" ""

# ---- a new run that begins with the weights of another ----
"$zero" ckpt export uninterrupted weights > export.out 2>&1 || fail "$(cat export.out)"
validated() { grep -oE '"val_loss":[^,}]*' "$1/metrics.jsonl" | "$2" -1; }
"$zero" train $common -n 1 --run-dir begun --weights weights --lr 1e-5 --quiet > begun.out 2>&1 || fail "$(cat begun.out)"
expect "first validation of a run with given weights" "$(validated begun head)" "$(validated uninterrupted tail)"
"$zero" train --preset gpt-2m --data text.py --cache-dir cache --steps 2 --weights weights --run-dir other > other.out 2>&1
expect "exit code for weights of other sizes" $? 1
grep -q "they are of another model" other.out || fail "$(cat other.out)"
[ -e other ] && fail "a run that could not begin has left $(ls other)"
"$zero" train $common -n 1 --run-dir other --weights uninterrupted > other.out 2>&1
grep -q "ckpt export uninterrupted DIR writes the weights" other.out || fail "$(cat other.out)"

# ---- without a folder: the newest below runs/ ----
mkdir -p sub && cd sub || exit 1
"$zero" train ${common/config.json/..\/config.json} --data ../text.py --cache-dir ../cache --steps 4 -n 1 --quiet > out 2>&1 || fail "$(cat out)"
"$zero" train --resume --steps 6 > out 2>&1 || fail "resume of the newest run: $(cat out)"
expect "steps of the newest run" "$(grep -c '"loss"' runs/*/metrics.jsonl)" 6
cd ..

# ---- refused ----
refused() { # part of the message, options
  local want=$1; shift
  "$zero" train "$@" > bad.out 2> bad.err
  expect "exit code of 'zero train $*'" $? 2
  grep -qF -- "$want" bad.err || fail "'zero train $*' says '$(cat bad.err)', want '$want'"
}
refused "no run below runs/" --resume
refused "holds no run" --resume --run-dir nowhere
refused "--preset excludes --resume" --resume --run-dir cut --preset gpt-2m
refused "train_batch_size (12)" --resume --run-dir cut -n 5
"$zero" train $common -n 1 --run-dir busy --steps 100000 --quiet > busy.out 2>&1 &
pid=$!
wait_for_steps busy 1
refused "another process is writing this run" --resume --run-dir busy
kill -TERM "$pid"; wait "$pid"
sed -i 's/return/yield/' text.py
rm -rf cache
refused "is not what the run" --resume --run-dir elsewhere

expect_nothing_in_shm
[ "$failures" = 0 ] && echo "zero train --resume: all well"
exit $((failures > 0))
