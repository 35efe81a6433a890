#!/bin/bash
# What the command line has in common with others: help, near names, numbers, doctor, runs, completion, the manual page.
# Usage: cli_test.sh <zero>
zero=$(realpath "$1")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=warning

refused() { # part of the message, arguments
  local want=$1; shift
  "$zero" "$@" > bad.out 2> bad.err
  expect "exit code of 'zero $*'" $? 2
  expect "output of 'zero $*'" "$(cat bad.out)" ""
  grep -qF -- "$want" bad.err || fail "'zero $*' says '$(cat bad.err)', want '$want'"
}

# ---- help, however it is asked for ----
"$zero" --help > help.want || fail "--help: $?"
for ask in "" "help" "-h"; do
  "$zero" $ask > help.got 2>&1 || fail "'zero $ask': exit code $?"
  cmp -s help.want help.got || fail "'zero $ask' is not the help"
done
"$zero" train --help > help.want
"$zero" help train > help.got || fail "zero help train: $?"
cmp -s help.want help.got || fail "zero help train: $(head -2 help.got)"
"$zero" help ckpt prune | grep -q -- --keep-last || fail "zero help ckpt prune"

"$zero" help help > help.got; "$zero" --help > help.want
cmp -s help.want help.got || fail "zero help help: $(head -2 help.got)"
in_80_columns() { # what, its text on standard input
  local wide; wide=$(awk 'length($0) > 80')
  [ -z "$wide" ] || fail "$1: lines beyond 80 columns: $wide"
}
commands=("" train generate eval launch ckpt "ckpt list" "ckpt inspect" "ckpt verify" "ckpt export" "ckpt diff" "ckpt prune" plan config
          "config check" "config convert" "config init" "config keys" compare bench doctor runs "runs list" "runs compare"
          version completion man)
for command in "${commands[@]}"; do "$zero" help $command | in_80_columns "help of 'zero $command'"; done
for command in "plan --preset gpt-1b --memory 1GB" "plan --preset gpt-1b --memory 10GB" doctor; do
  "$zero" $command | in_80_columns "zero $command"
done
"$zero" config init > init.json && "$zero" config check init.json | in_80_columns "zero config check"
expect "a file on standard input" "$("$zero" config check - < init.json | tail -n +2)" "$("$zero" config check init.json | tail -n +2)"
expect "keys as JSON" "$("$zero" config keys --json offload_optimizer.device | python3 -c 'import json, sys; (key,) = json.load(sys.stdin); print(key["default"])')" none
if [ -w /dev/full ]; then
  "$zero" train --print-config > /dev/full 2> bad.err
  expect "exit code of a configuration that is lost" $? 1
  "$zero" help > /dev/full 2> bad.err
  expect "exit code of help that cannot be written" $? 1
fi

# ---- what is not known, in the order in which it was typed, with the nearest name ----
refused "there is no command 'zero trian'; did you mean 'train'?" trian
refused "there is no command 'zero chekpoint'; did you mean 'ckpt'?" chekpoint
refused "zero train has no option '--learning-rate'; did you mean '--lr'?" train --learning-rate 1
refused "zero train has no option '--lerning-rate'; did you mean '--lr'?" train --lerning-rate 1
refused "zero train has no option '--gpus'; did you mean '--device'?" train --gpus 2
refused "zero launch has no option '--num_gpus'; did you mean '--ranks'?" launch --num_gpus 2 true
refused "zero train has no option '-q5'; -q takes no value" train -q5
refused "--steps: got 'x', want" train --steps x --seed y --lr q
refused "zero train has no option '--bogus'" train --bogus --steps x
refused "--steps: got 'x', want" train --steps x --bogus
refused "--lr: got 'q', want" train --lr q --steps
refused "--steps: no value given; want N" train --steps
refused "-n: got '0', want a whole number" train -n 0
refused "--dtype: got 'int8', want fp32, bf16, fp16" train --dtype int8
refused "zero config check: file is required" config check
refused "zero ckpt prune: --keep-last is required" ckpt prune x
refused "zero ckpt: no command given; want list, inspect" ckpt
refused "--tokens: got '1 2 3', want a whole number" generate . --tokens "1 2 3"
refused "--parameters: got '0.5', which is less than one" plan --parameters 0.5
refused "Try \`zero launch --help\`" launch --foo ls
refused "there is no command 'zero frobnicate'; want train, generate, eval, launch" frobnicate
refused "there is no command 'zero ckpt prun'; did you mean 'prune'?" ckpt prun x
refused "zero train has no option '--prest'; did you mean '--preset'?" train --prest gpt-tiny --lrr 3
refused "zero train has no option '--batch-sizes'" train --batch-sizes 8
refused "Try \`zero ckpt prune --help\`" ckpt prune x
refused "--steps: got 'abc', want a whole number, at least 1" train --steps abc
refused "--steps: got '1.5', want a whole number" train --steps 1.5
refused "--stage: got '4', want a whole number, from 0 to 3" train --stage 4
refused "--temperature: got 'nan', want a number from 0 to 100" generate . --temperature nan
refused "--memory: got '24', want a size with its unit" plan --memory 24
refused "--data: want a path" train --data ""
"$zero" train --preset gpt-tiny --steps 1e3 --print-config > config.out 2>&1 || fail "--steps 1e3: $(cat config.out)"
grep -q 1000 config.out || fail "1e3 steps: $(cat config.out)"

# ---- colours: only where a terminal has them ----
grep -q $'\x1b' help.got && fail "terminal codes in a file"
FORCE_COLOR=1 "$zero" --help | grep -qF $'\x1b[1mUsage:\x1b[0m' || fail "no heading in bold: $(FORCE_COLOR=1 "$zero" --help | head -3 | od -c | head -5)"
FORCE_COLOR=1 "$zero" train --stage 9 2> bad.err; grep -qF $'\x1b[1;31mzero: error:\x1b[0m --stage' bad.err || fail "no error in red: $(cat bad.err)"
FORCE_COLOR=1 NO_COLOR=1 "$zero" train --stage 9 2> bad.err; grep -q $'\x1b' bad.err && fail "NO_COLOR: $(cat bad.err)"
FORCE_COLOR=1 "$zero" plan --preset gpt-tiny --memory 1GB | grep -qF $'\x1b[32m        yes\x1b[0m' || fail "no yes in green"
if command -v script > /dev/null; then
  TERM=xterm script -qec "$zero --help" /dev/null | grep -q $'\x1b\[1m' || fail "no colours on a terminal"
  TERM=dumb script -qec "$zero --help" /dev/null | grep -q $'\x1b\[1m' && fail "colours on a dumb terminal"
fi
"$zero" version --json > version.out && expect "version" "$(value version.out 'sorted(j)[:1] != [] and "zerotorch" in j["versions"]')" True

# ---- launch: what follows the program is its own ----
launched() { "$zero" launch "$@" 2>&1; }
expect "a program with options like ours" "$(launched -n 1 echo -n 5 --grace x)" "[0] 5 --grace x"
expect "the same after --" "$(launched -n 1 --no-prefix -- echo --no-prefix)" "--no-prefix"
expect "--env" "$(launched --nproc=2 --env A=1 --env B=2 sh -c 'echo $A$B' | cut -c5- | sort -u)" "12"
expect "ranks of zero launch without -n" "$(launched sh -c 'echo $WORLD_SIZE' | sort | tr '\n' ' ')" "[0] 2 [1] 2 "
expect "restarts" "$(launched -n 1 --max-restarts 2 sh -c 'echo $ZERO_RESTART_COUNT; [ $ZERO_RESTART_COUNT = 2 ]' | grep -c '^\[0\] [012]$')" 3
echo "localhost slots=2  # this one" > hosts
echo "-x slots=2" > hosts.bad
refused "hosts.bad:1: got '-x slots=2'" launch --hostfile hosts.bad true
echo "localhost" > hosts.bad
refused "hosts.bad:1: got 'localhost', want a host and its number of ranks" launch --hostfile hosts.bad true
refused "-n 3: the hosts have 2 slots" launch -n 3 --hostfile hosts true
refused "No such file" launch --hostfile nowhere true
refused "--nnodes: how many hosts of --hostfile" launch --nnodes 2 true
refused "--nnodes: got '3:2'" launch --hostfile hosts --nnodes 3:2 true
refused "2 to 2 hosts are wanted, and 1 are listed" launch --hostfile hosts --nnodes 2 true
refused "exclude each other" launch --hostfile hosts --nnodes 1 -n 1 true
if mpirun --version 2> /dev/null | grep -q "Open MPI"; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  expect "ranks of a host file" "$(OMP_NUM_THREADS= ; unset OMP_NUM_THREADS; launched --hostfile hosts --no-prefix --env "A=x y" sh -c 'echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE $A ${OMP_NUM_THREADS:+threads}' | sort | tr '\n' ';')" "0 of 2 x y threads;1 of 2 x y threads;"
  expect "its first slots" "$(launched -n 1 --hostfile hosts --no-prefix sh -c 'echo $OMPI_COMM_WORLD_SIZE')" 1
  launched --hostfile hosts sh -c 'exit 7' > /dev/null
  expect "exit code of ranks of a host file" $? 7
  expect "restarts of ranks of a host file" "$(launched --hostfile hosts --max-restarts 2 sh -c 'echo $ZERO_RESTART_COUNT; [ $ZERO_RESTART_COUNT = 1 ]' | grep -c '^\[[01]\] [01]$')" 4
fi
write_text
limited() { timeout 20 "$zero" launch "$@" 2>&1; }
out=$(ZERO_STOPPED_LIMIT_S=0.1 limited -n 2 sh -c '[ $RANK = 1 ] && kill -STOP $$; sleep 30')
expect "exit code where a rank is stopped" $? 1
echo "$out" | grep -q "rank 1 .* failed first: stopped" || fail "a stopped rank: $out"
for gone in 0 1; do
  out=$(limited -n 2 sh -c "[ \$RANK = $gone ] && exit 0; sleep 0.\$RANK; exec $zero train --preset gpt-tiny --data text.py --cache-dir cache --steps 2 -q --run-dir alone")
  expect "exit code where rank $gone ends before it meets the others" $? 1
  echo "$out" | grep -q "rank $gone exited with code 0 before it joined the group" || fail "a rank that ended: $out"
done
expect_nothing_in_shm
if [ -w /dev/full ]; then
  "$zero" launch -n 2 sh -c 'echo y; sleep 0.2' > /dev/full 2> bad.err
  expect "exit code where the output is lost" $? 1
  grep -q "output of rank [01] is lost: No space left" bad.err || fail "lost output: $(cat bad.err)"
fi
refused "--env: got 'B', want NAME=VALUE" launch -n 1 --env B bash -c 'echo x'
expect "input of rank 0" "$(echo word | launched -n 2 cat)" "[0] word"
refused "zero has no option '-n'" -n 2 train
refused "did you mean 'help'?" hlep
refused "did you mean '--steps'?" train --STEPS 3
refused "did you mean '--quiet'?" train --qui
refused "--nvme-parameters requires --nvme" train --nvme-parameters
refused "--tokens: got '', want a whole number" generate r --tokens ''
refused "--unfused-attention: is of activations" plan --parameters 1e9 --unfused-attention
refused "gives the model some" train --lora-alpha 3
"$zero" train --preset gpt-tiny --data a --data text.py --pack-only --cache-dir cache 2>&1 | grep -q "warning: --data: given 2 times; the text is text.py" ||
  fail "two texts, and not a word"
refused "did you mean '--suffix'?" train --all-files
refused "did you mean '--recompute'?" plan --checkpointing
mkdir kinds && cp text.py kinds/text.kind
refused "kinds" train --data kinds --pack-only --cache-dir cache
"$zero" train --data kinds --suffix '' --pack-only --cache-dir cache > kinds.out 2>&1 || fail "--suffix '': $(cat kinds.out)"
mkfifo pipe.txt
refused "is a pipe, and can be read but once" train --data pipe.txt
mkdir -p held/checkpoints && "$zero" help ckpt prune held --keep-last 1 | grep -q "^Usage: zero ckpt prune" || fail "zero help with arguments"
"$zero" train --print-config --nvme nv | grep -q '"nvme_path": "nv"' || fail "--print-config leaves --nvme out"
expect "a line of 200,000 bytes" "$("$zero" launch --no-prefix -n 1 sh -c 'head -c 200000 /dev/zero | tr "\0" x; echo' | wc)" "$(printf '%7d %7d %7d' 1 1 200001)"
"$zero" launch -n 2 echo hi >&- 2> bad.err
expect "exit code where standard output is closed" $? 1
grep -q "output of rank [01] is lost: Bad file descriptor" bad.err || fail "closed output: $(cat bad.err)"
mkdir logs && ln -s /dev/full logs/rank0.log
expect "where a log is lost" "$("$zero" launch --log-dir logs -n 2 echo hi 2>&1 > /dev/null)" \
  "zero launch: a part of the log logs/rank0.log is lost: No space left on device"
"$zero" launch -n 2 sh -c 'kill -STOP $$; sleep 30' 2> bad.err &
pid=$!
until [ "$(ps -o stat= --ppid $pid | grep -c T)" = 2 ]; do sleep 0.05; done
kill -TERM $pid; wait $pid
expect "exit code of a stop where ranks are stopped" $? 143
rm logs/rank0.log && mkfifo logs/rank0.log
refused "cannot write the log 'logs/rank0.log'" launch --log-dir logs -n 2 true
"$zero" launch -n 2 sh -c 'setsid sleep 77 & echo started; wait' > out 2> bad.err &
pid=$!
until [ "$(grep -c started out)" = 2 ]; do sleep 0.05; done
kill -QUIT $pid; wait $pid
expect "exit code of SIGQUIT" $? 131
grep -q "ended at once by SIGQUIT" bad.err || fail "SIGQUIT: $(cat bad.err)"
refused "ZERO_RANK says to each rank which it is" launch --env ZERO_RANK=7 true
refused "--env: got '1A=2', want NAME=VALUE" launch --env 1A=2 true
refused "--nproc: got '0', want a whole number" launch --nproc 0 --log-dri q true
refused "--nproc: got 'bad', want a whole number" launch -n 3 --nproc=bad true
refused "ZERO_RESTART_COUNT says to each rank" launch --env ZERO_RESTART_COUNT=7 true
refused "--env: got 'A', want NAME=VALUE" launch --env A --nproc 0 true
expect "the last of two numbers, and one behind its letter" "$(launched --nproc 3 -n2 sh -c 'echo $WORLD_SIZE' | head -1 | cut -d' ' -f2)" 2
refused "zero ckpt prune takes no argument 'extra'" ckpt prune base extra --jsn
refused "zero ckpt prune has no option '--jsn'" ckpt prune --jsn 5 base
refused "--modes: got 'stage9', want some of compute, stage0" compare --modes stage9 --rounds 0
refused "--device: got 'tpu', want cpu" eval base --device tpu -n 0
refused "no program given" launch -n 2
refused "did you mean '--no-prefix'?" launch -n 1 --no-prefx echo

# ---- doctor ----
"$zero" doctor > doctor.out || fail "doctor: $(cat doctor.out)"
for word in cores instructions products memory /dev/shm disk MPI "ready to train"; do
  grep -qF "$word" doctor.out || fail "doctor says nothing of $word: $(cat doctor.out)"
done
"$zero" doctor --json | python3 -c 'import json, sys; assert len(json.load(sys.stdin)) == 9' || fail "doctor --json"
"$zero" doctor --dir /proc/nowhere > doctor.out
expect "exit code where no checkpoint can be written" $? 1
expect "what doctor leaves" "$(find . -name '*scratch*')" ""

# ---- runs ----
refused "there is no folder 'runs'" runs list
write_text
given="--preset gpt-tiny --data text.py --cache-dir cache --steps 3 --eval-batches 1 --sample-length 0 --quiet"
for stage in 1 3; do
  "$zero" train $given -n 2 --stage $stage --run-dir runs/s$stage > out 2>&1 || fail "train: $(cat out)"
done
OMP_NUM_THREADS=2 "$zero" train $given -n 1 --seed 7 --run-dir runs/other > out 2>&1 || fail "train: $(cat out)"
"$zero" runs list > out || fail "runs list: $?"
expect "runs" "$(wc -l < out)" 3
grep -qE '^s1 +step +3/3 +val +[0-9.]+ +finished$' out || fail "runs list: $(cat out)"
"$zero" runs list --json | python3 -c 'import json, sys; assert [r["steps"] for r in json.load(sys.stdin)] == [3] * 3' || fail "runs list --json"
sed 's/"finished": true/"finished": false, "error": "lost"/' runs/s1/summary.json > failed.json
cp -r runs/s1 unsummed && rm unsummed/summary.json
"$zero" runs list unsummed | grep -qE 'val +[0-9.]+ ' || fail "a run without a summary: $("$zero" runs list unsummed)"
rm unsummed/metrics.jsonl && expect "a run without metrics" "$("$zero" runs list unsummed | wc -l)" 1
cp -r runs/s1 failed && cp failed.json failed/summary.json
"$zero" runs list failed | grep -q ' failed$' || fail "a run that failed: $("$zero" runs list failed)"
"$zero" runs compare runs/s1 runs/s3 > out || fail "two stages differ: $(cat out)"
grep -qF 'zero_optimization.stage: 1 and 3' out || fail "runs compare: $(cat out)"
grep -qF 'of 3 in both, 3 have the same loss and norm' out || fail "runs compare: $(cat out)"
"$zero" runs compare runs/s1 runs/other > out
expect "exit code of runs that differ" $? 1
grep -qF 'the first that differs is step' out || fail "runs compare: $(cat out)"
grep -qF 'threads a rank: 1 and 2' out || fail "runs compare: $(cat out)"
refused "holds no run" runs compare runs/s1 text.py

# ---- completion, as bash does it; the manual page ----
completions() { # words typed
  bash -c 'eval "$("$0" completion bash)"; program=$0; zero() { "$program" "$@"; }; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zero; printf "%s\n" "${COMPREPLY[@]}"' "$zero" "$@"
}
completions zero tr | grep -qx train || fail "completion of 'zero tr': $(completions zero tr)"
completions zero ckpt pr | grep -qx prune || fail "completion of 'zero ckpt pr'"
completions zero train --pre | grep -qx -- --preset || fail "completion of 'zero train --pre'"
expect "completion of --preset=" "$(completions zero train --preset = gpt-t; completions zero train --preset=gpt-t)" "gpt-tiny
--preset=gpt-tiny"
expect "completion of --stage" "$(completions zero train --stage '' | tr '\n' ' ')" "0 1 2 3 "
expect "completion behind a program" "$(completions zero launch -n 2 --log-dir=x ./train --; completions zero launch --log-dir = x ./train --)" ""
completions zero launch --env A = 1 --lo | grep -qx -- --log-dir || fail "completion behind --env A=1"
completions zero launch -n 2 --lo | grep -qx -- --log-dir || fail "completion of 'zero launch -n 2 --lo'"
expect "completion behind what is no command" "$(completions zero bogus ''; completions zero ckpt bogus '')" ""
completions zero help ck | grep -qx ckpt || fail "completion of 'zero help ck'"
completions zero ckpt prune folder --ke | grep -qx -- --keep-last || fail "completion behind an argument"
expect "completion of a value" "$(completions zero train --dtype "" | tr '\n' ' ')" "fp32 bf16 fp16 "
expect "completion of a preset" "$(completions zero plan --preset gpt-2 | tr '\n' ' ')" "gpt-2m gpt-25m "
completions zero completion "" | grep -qx zsh || fail "completion of a shell"
expect "completion of a file, which is the shell's" "$(completions zero train --config "")" ""
completions zero train --steps 3 --st | grep -qx -- --stage || fail "completion behind a value"
for shell in zsh fish; do "$zero" completion $shell | grep -q "zero __complete" || fail "completion $shell"; done
refused "bash" completion tcsh
"$zero" man > zero.1 || fail "man: $?"
head -1 zero.1 | grep -q '^\.TH ZERO 1' || fail "man: $(head -1 zero.1)"
grep -q 'keep\\-last' zero.1 || fail "the manual page has not all options"
if command -v groff > /dev/null; then
  groff -man -ww -Tutf8 zero.1 > man.txt 2> man.err || fail "groff: $(cat man.err)"
  expect "warnings of groff" "$(cat man.err)" ""
fi

[ "$failures" = 0 ] && echo "the command line: all well"
exit $((failures > 0))
