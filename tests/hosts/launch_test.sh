#!/usr/bin/env bash
# Ranks of a C++ program over two hosts: mpirun, zero launch --hostfile, and what can happen to its ranks and hosts.
# Usage: launch_test.sh <zero>
source "$(dirname "$0")/support.sh"
if [ "${1-}" != --inside ]; then over_hosts 2 "$(realpath "$1")"; exit $?; fi
zero=$2
cd "$work" || exit 1
export OMP_NUM_THREADS=1 ZERO_LOG_LEVEL=warning

# ---- every way to start two ranks ----
for start in "mpirun -np 2 --hostfile $HOSTFILE -x OMP_NUM_THREADS" "$zero launch --hostfile $HOSTFILE --no-prefix"; do
  said=$(timeout 30 $start "$zero" doctor --measure-links 2>said.err) || fail "$start: $? $(cat said.err)"
  contains "$start" "$said" "nbytes_per_s"
done

# ---- variables, input, output, exit codes ----
said=$(echo hello | "$zero" launch --hostfile "$HOSTFILE" --env 'WORD=a b' \
  sh -c 'read word; echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $ZERO_RESTART_COUNT $WORD $(hostname) $word"' | sort)
expect "variables" "$said" "[0] 0/2 0/1 0 10.77.0.1 0 a b h1 hello
[1] 1/2 0/1 1 10.77.0.1 0 a b h2 "
"$zero" launch --hostfile "$HOSTFILE" --log-dir logs sh -c 'echo out $RANK; exit $((RANK * 7))' >said.out 2>said.err
expect "exit code" $? 7
expect "lines of the launcher and mpirun" "$(wc -l <said.err)" 1
contains "last line" "$(tail -1 said.err)" "on h2) failed first: exit code 7"
expect "log" "$(cat logs/rank1.log)" "out 1"
contains "record" "$(grep rank_ended logs/launch.jsonl)" '"exit_code":7'
"$zero" launch --hostfile "$HOSTFILE" ./not_there 2>said.err
expect "exit code of a program that is not there" $? 127
contains "a program that is not there" "$(cat said.err)" 'cannot start "./not_there"'

# ---- signals ----
"$zero" launch --hostfile "$HOSTFILE" --log-dir stopped sh -c 'trap "sleep 3; echo saved; exit 0" TERM; echo ready; sleep 60 & wait' >said.out 2>said.err &
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
  "$zero" launch --hostfile "$HOSTFILE" sh forever.sh >said.out 2>said.err &
  job=$!
  wait_for '[ -e pid.0 ] && [ -e pid.1 ]'
  local begin; begin=$(now)
  eval "$2"
  [ "$1" != "frozen host" ] || begin=$(now)  # stopping one process after the other takes a while
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
mend 2

done_testing
