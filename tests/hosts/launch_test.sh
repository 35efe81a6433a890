#!/usr/bin/env bash
# Ranks of a C++ program over two hosts: mpirun, zero launch --hostfile with what can happen to it, zero doctor --hosts.
# Usage: launch_test.sh <zero> <training_run>
source "$(dirname "$0")/support.sh"
if [ "${1-}" != --inside ]; then over_hosts 3 "$(realpath "$1")" "$(realpath "$2")"; exit $?; fi
zero=$2 training_run=$3
cd "$work" || exit 1
export OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=warning
head -2 "$HOSTFILE" >two

# ---- every way to start two ranks ----
for start in "mpirun -np 2 --hostfile two -x OMP_NUM_THREADS" "$zero launch --hostfile two --no-prefix"; do
  said=$(timeout 30 $start "$zero" doctor --measure-links 2>said.err) || fail "$start: $? $(cat said.err)"
  contains "$start" "$said" "nbytes_per_s"
done

# ---- variables, input, output, exit codes ----
said=$(echo hello | "$zero" launch --hostfile two --env 'WORD=a b' \
  sh -c 'read word; echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $ZERO_RESTART_COUNT $WORD $(hostname) $word"' | sort)
expect "variables" "$said" "[0] 0/2 0/1 0 10.77.0.1 0 a b h1 hello
[1] 1/2 0/1 1 10.77.0.1 0 a b h2 "
"$zero" launch --hostfile two --log-dir logs sh -c 'echo out $RANK; exit $((RANK * 7))' >said.out 2>said.err
expect "exit code" $? 7
expect "lines of the launcher and mpirun" "$(wc -l <said.err)" 1
contains "last line" "$(tail -1 said.err)" "on h2) failed first: exit code 7"
expect "log" "$(cat logs/rank1.log)" "out 1"
contains "record" "$(grep rank_ended logs/launch.jsonl)" '"exit_code":7'
"$zero" launch --hostfile two ./not_there 2>said.err
expect "exit code of a program that is not there" $? 127
contains "a program that is not there" "$(cat said.err)" 'cannot start "./not_there"'

# ---- signals ----
"$zero" launch --hostfile two --log-dir stopped sh -c 'trap "sleep 3; echo saved; exit 0" TERM; echo ready; sleep 60 & wait' >said.out 2>said.err &
job=$!
wait_for '[ "$(grep -c ready said.out)" = 2 ]'
kill -TERM $job
wait $job
expect "exit code after SIGTERM that ranks follow" $? 0
expect "ranks had time to save" "$(grep -c saved said.out)" 2

# ---- what ends a job: within ten seconds, and nothing is left ----
cat >forever.sh <<'END'
echo $$ >pid.$RANK.new; mv pid.$RANK.new pid.$RANK
trap "" TERM
sleep 300
END
struck() { # what, command, wanted part of the last line
  rm -f pid.*
  "$zero" launch --hostfile two sh forever.sh >said.out 2>said.err &
  job=$!
  wait_for '[ -e pid.0 ] && [ -e pid.1 ]'
  local begin; begin=$(now)
  eval "$2"
  wait $job
  [ $? -ne 0 ] || fail "$1: exit code 0"
  took_at_most "$1" "$begin" 10
  contains "$1" "$(tail -1 said.err)" "$3"
  for rank in 0 1; do wait_for "! kill -0 $(cat pid.$rank) 2>/dev/null"; done
}
struck "killed rank" 'kill -KILL $(cat pid.1)' "on h2) failed first: killed by signal 9"
struck "killed host" 'crash 2' "h2 (rank 1) was lost"
struck "frozen host" 'freeze 2' "host h2 (rank 1) was lost: no sign of life for 6.0 s"
thaw 2
struck "cut link" 'link 2 down' "host h2 (rank 1) was lost: no sign of life for 6.0 s"
link 2 up

# ---- all ranks again from their last checkpoint, with the spare host in place of the lost one ----
config=$root/examples/training_run.json
"$zero" launch --hostfile "$HOSTFILE" --nnodes 2 --max-restarts 2 --log-dir again "$training_run" "$config" run >said.out 2>said.err &
job=$!
wait_for 'ls run/checkpoints/*/ >/dev/null 2>&1'
link 2 down
wait $job
expect "exit code of a job that was started again ($(tail -3 said.err))" $? 0
contains "left out" "$(cat said.err)" "host h2 does not answer"
contains "record" "$(grep '"event":"start"' again/launch.jsonl | tail -1)" '"host":"h3"'
link 2 up

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
