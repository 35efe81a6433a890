#!/usr/bin/env bash
# A job that loses a host starts again on others, and zero doctor looks at hosts.
# Usage: restart_test.sh <zero> <training_run>
source "$(dirname "$0")/support.sh"
if [ "${1-}" != --inside ]; then over_hosts 3 "$(realpath "$1")" "$(realpath "$2")"; exit $?; fi
zero=$2 training_run=$3
cd "$work" || exit 1
export OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=warning

# ---- all ranks again from their last checkpoint, with the spare host in place of the lost one ----
config=$root/examples/training_run.json
"$zero" launch --hostfile "$HOSTFILE" --nnodes 2 --max-restarts 2 --log-dir again "$training_run" "$config" run >said.out 2>said.err &
job=$!
wait_for 'ls run/checkpoints/*/ >/dev/null 2>&1'
link 2 down
wait $job
expect "exit code of a job that was started again ($(tail -3 said.err))" $? 0
contains "left out" "$(cat said.err)" "host h2 does not answer"
contains "first start" "$(grep '"event":"start"' again/launch.jsonl | head -1)" '"host":"h2"'
contains "second start" "$(grep '"event":"start"' again/launch.jsonl | tail -1)" '"host":"h3"'
mend 2

# ---- a run folder that each host has to itself ----
"$zero" launch --hostfile "$HOSTFILE" -n 2 "$training_run" "$config" /tmp/run >said.out 2>&1 && fail "a folder that is not shared is taken"
contains "a folder that is not shared" "$(cat said.out)" "is another one on other hosts: rank 1 does not see"

# ---- zero doctor ----
"$zero" doctor --hosts "$HOSTFILE" --run-dir "$work/run" >said.out || fail "doctor: $(cat said.out)"
contains "doctor" "$(cat said.out)" "Gbit/s from h1"
expect "lines beyond 80 columns" "$(awk 'length($0) > 80' said.out)" ""
link 3 down
"$zero" doctor --hosts "$HOSTFILE" --run-dir /tmp/run --timeout 3 >said.out
expect "doctor's exit code" $? 1
contains "a host that does not answer" "$(cat said.out)" "no answer within 3 s"
contains "a folder that is not shared" "$(cat said.out)" "another folder there"
done_testing
