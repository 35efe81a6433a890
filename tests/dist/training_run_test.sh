#!/bin/bash
# examples/training_run: whatever ends it, started again it goes on to the same curve and weights, bit for bit.
# Usage: training_run_test.sh <training_run> <configuration> <zero>
program=$1 config=$2 zero=$3
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
lines() { { wc -l < "$1/metrics.jsonl"; } 2>/dev/null || echo 0; }
wait_for_lines() { # folder, lines
  for _ in $(seq 1 3000); do
    [ "$(lines "$1")" -ge "$2" ] && return
    sleep 0.01
  done
  fail "$1: $2 lines did not come"
}
same() { # folder: as the run that was never interrupted
  cmp uninterrupted/metrics.jsonl "$1/metrics.jsonl" || fail "$1: another curve"
  "$zero" ckpt diff "$1/checkpoints/global_step1000" uninterrupted/checkpoints/global_step1000 > diff.out 2>&1
  grep -E '^ +(weight|exp_avg|exp_avg_sq|buffer)' diff.out && fail "$1: other weights or states"
  grep -qE '^[0-9]+ of [0-9]+ tensors are equal' diff.out || fail "$1: no comparison: $(cat diff.out)"
}
start() { "$program" "$config" "$1" > "$1.out" 2>&1; }

start uninterrupted || { fail "exit code $?"; cat uninterrupted.out; exit 1; }
[ "$(lines uninterrupted)" = 1000 ] || fail "$(lines uninterrupted) lines of metrics"
[ "$(ls uninterrupted/checkpoints | grep -c global_step)" = 2 ] || fail "kept $(ls uninterrupted/checkpoints)"

# ---- kill -9, then on as one rank ----
"$program" "$config" killed > killed.out 2>&1 &
pid=$!
wait_for_lines killed 250
kill -9 "$pid"; wait "$pid" 2> /dev/null  # the ranks die with it
while pgrep -f -- "$config killed" > /dev/null; do sleep 0.05; done
[ "$(lines killed)" -lt 1000 ] || echo "note: the run was over before it was killed"
"$zero" launch -n 1 -- "$program" "$config" killed > killed.out 2>&1 || { fail "after kill -9: $?"; cat killed.out; }
same killed

# ---- SIGTERM to the launcher, then to one rank alone: a checkpoint of the last step each time ----
stopped() { # pid, rank's or launcher's pid that gets the signal
  kill -TERM "$2"
  wait "$1" || { fail "exit code $? after SIGTERM"; cat stopped.out; }
  [ -d "stopped/checkpoints/global_step$(lines stopped)" ] || fail "$(lines stopped) lines, $(ls stopped/checkpoints)"
}
"$program" "$config" stopped > stopped.out 2>&1 &
pid=$!
wait_for_lines stopped 130
stopped $pid $pid
grep -q "stopping after this step" stopped.out || fail "no word of the signal: $(cat stopped.out)"
before=$(lines stopped)
[ "$before" -lt 1000 ] || echo "note: the run was over before it got the signal"
"$program" "$config" stopped > stopped.out 2>&1 &
pid=$!
wait_for_lines stopped $((before + 130))
stopped $pid "$(pgrep -P $pid | tail -n 1)"
start stopped || { fail "the last part: $?"; cat stopped.out; }
same stopped

# ---- nothing to go on from: the curve begins again; two writers of one run ----
mkdir begun; head -n 7 uninterrupted/metrics.jsonl > begun/metrics.jsonl
"$program" "$config" begun > begun.out 2>&1 &
pid=$!
wait_for_lines begun 150
"$program" "$config" begun > second.out 2>&1 && fail "a second process wrote the same run"
grep -q "another process is writing this run" second.out || fail "$(cat second.out)"
wait "$pid" || { fail "begun: $?"; cat begun.out; }
same begun

expect_nothing_in_shm
[ "$failures" = 0 ] && echo "training_run: all well"
exit $((failures > 0))
