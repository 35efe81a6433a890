#!/bin/bash
# `zero compare` from outside: every mode runs, the curves coincide, memory falls with the stage, the glue to
# the picture, bad input.
# Usage: compare_command_test.sh <path of zero>
set -u
zero=$(realpath "$1")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
export XDG_CACHE_HOME="$work/cache"

# compare <exit code> <options>: runs `zero compare` into out and err
compare() {
  local want=$1; shift
  timeout 200 "$zero" compare --preset gpt-tiny "$@" > out 2> err < /dev/null
  local got=$?
  [ "$got" = "$want" ] || { fail "exit code of 'zero compare $*': got $got, want $want"; cat out err; }
}
says() { grep -qF -- "$1" out || { fail "no '$1' in:"; cat out err; }; }
complains() { grep -qF -- "$1" err || { fail "no '$1' in:"; cat out err; }; }
# value <expression over j and modes>: of compare.json in the folder $1
value() {
  python3 -c "import json; j = json.load(open('$1/compare.json'))
modes = {m['mode']: m for m in j['modes']}
print(($2))"
}

mkdir text && echo 'def text():' > text/a.py && for i in $(seq 2000); do echo "    value_$i = $i" >> text/a.py; done
# ---- every mode ----
compare 0 --data text --steps 4 --warmup 1 --out all --no-plot
says "ZeRO-3 copying"
says "round 2 of 2"
expect "lines that 80 columns do not hold" "$(awk 'length > 80' out | grep -vc '^model\|^training\|^data\|results')" 0
says "the same bits in all 4 steps of all 5 modes"
grep -q $'\x1b' out && fail "terminal codes in a file"
expect "modes" "$(value all 'list(modes)')" \
  "['compute', 'stage0', 'stage1', 'stage2', 'stage3', 'stage3-copying']"
expect "rounds" "$(value all '{len(m["rounds"]) for m in modes.values()}, {len(r["seconds"]) for m in modes.values() for r in m["rounds"]}')" "({2}, {4})"
expect "shares of others" "$(value all 'all(0 <= r["others_cpu_share"] <= 1 for m in modes.values() for r in m["rounds"])')" True
expect "losses" "$(value all 'j["same_losses"] and len(set(tuple(m["losses"]) for n, m in modes.items() if n != "compute")) == 1')" True
expect "the model learns" "$(value all 'modes["stage3"]["losses"][-1] < modes["stage3"]["losses"][0]')" True
expect "the same model at first" "$(value all 'abs(modes["compute"]["losses"][0] - modes["stage0"]["losses"][0]) < 1e-3')" True
kind='lambda mode, kind: max(r[kind]["current_nbytes"] for r in modes[mode]["memory"]["by_rank"])'
expect "optimizer states are halved" "$(value all "(lambda f: 0.4 < f('stage1', 'optimizer') / f('stage0', 'optimizer') < 0.6)($kind)")" True
expect "parameters are halved" "$(value all "(lambda f: 0.4 < f('stage3', 'parameters') / f('stage2', 'parameters') < 0.6)($kind)")" True
expect "traffic falls where parameters exist once per host" \
  "$(value all 'modes["stage3"]["received_nbytes_per_step"] < modes["stage2"]["received_nbytes_per_step"] <= modes["stage3-copying"]["received_nbytes_per_step"]')" True
expect "no traffic without an engine" "$(value all 'modes["compute"]["received_nbytes_per_step"]')" 0.0
expect "peak memory and plan" "$(value all 'all(m["memory"]["peak_pss_nbytes"] > 1e7 and m["planned_nbytes"] > 1e7 for n, m in modes.items() if n != "compute")')" True

# ---- the picture: drawn, or the line that draws it ----
compare 0 --data text --steps 2 --warmup 1 --modes stage2,stage3 -n 3 --out two
if grep -qF "compare.png" out; then
  [ -s two/compare.png ] && [ -s two/compare.svg ] || fail "no pictures"
  grep -q "<svg" two/compare.svg || fail "no SVG"
else
  says "no picture: no Python with matplotlib"
fi
expect "ranks" "$(value two 'len(modes["stage3"]["memory"]["by_rank"])')" 3

# ---- for programs ----
compare 0 --data text --steps 2 --warmup 1 --rounds 1 --modes compute,stage1 --out json --no-plot --json --python "$(command -v python3)"
python3 -c "import json; a, b = json.load(open('out')), json.load(open('json/compare.json')); assert a == b and a['rounds'] == 1" ||
  fail "--json: $(head -3 out)"

# ---- on a busy machine its times are doubtful ----
for _ in $(seq "$(nproc)"); do (exec timeout 60 sh -c 'while :; do :; done') & done
compare 0 --data text --steps 3 --warmup 1 --rounds 1 --modes compute,stage1 --out busy --no-plot
for pid in $(jobs -p); do kill "$pid" 2> /dev/null; done
wait 2> /dev/null
says "other programs had up to"

# ---- bad input ----
compare 2 --data text --modes stage4
complains "--modes: got 'stage4', want some of compute, stage0"
compare 2 --data text --steps 3 --warmup 3
complains "--warmup 3: want less than the 3 steps"
compare 2 --data text --out all
complains "it already holds a comparison"
compare 2 --data text --python /nowhere/python --out none
complains "/nowhere/python: is no Python that runs"
[ -e none ] && fail "a folder for nothing"
compare 2 --data text --config /nowhere.json
complains "/nowhere.json"
ZERO_RANK=0 ZERO_WORLD_SIZE=1 ZERO_LOCAL_RANK=0 ZERO_LOCAL_WORLD_SIZE=1 ZERO_JOB_ID=x \
  "$zero" compare --data text > out 2> err
complains "zero compare starts its own ranks"

# ---- Ctrl-C ----
"$zero" compare --data text --preset gpt-11m --steps 500 --modes stage3,stage2 --out stopped --no-plot > out 2> err &
pid=$!
for _ in $(seq 100); do grep -q training out && break; sleep 0.1; done
sleep 2
kill -INT $pid
wait $pid
expect "exit code after Ctrl-C" $? 130
[ -e stopped/compare.json ] && fail "a result of a comparison that was stopped in its first mode"
"$zero" compare --data text --preset gpt-tiny --dtype fp32 --steps 3 --modes stage3,stage2 --rounds 40 --out partly --no-plot > out 2> err &
pid=$!
for _ in $(seq 600); do [ -e partly/stage2.json ] && break; sleep 0.1; done
sleep 2
kill -INT $pid
wait $pid
expect "exit code of a comparison that was stopped later" $? 130
expect "modes that were complete" "$(python3 -c 'import json; print(len(json.load(open("partly/compare.json"))["modes"]))')" 2
grep -q fp32 out || fail "--dtype is not in $(cat out)"

# ---- 16-bit products are computed in one way, also without an engine ----
says_config() { sed "s/\"cpu_products\": *\"[a-z0-9]*\"/\"cpu_products\": \"$1\"/" config.json > "$1.json"; }
"$zero" train --preset gpt-tiny --data text --print-config > config.json
grep -q cpu_products config.json || python3 -c 'import json; j = json.load(open("config.json")); j.setdefault("zerotorch", {})["cpu_products"] = "auto"
json.dump(j, open("config.json", "w"))'
for way in native fp32; do
  says_config $way
  compare 0 --data text --steps 2 --warmup 1 --rounds 1 --modes compute,stage2 --config $way.json --out by_$way --no-plot
  expect "estimate" "$(grep -c '^machine .*GFLOP/s' out)" 1
done
for mode in compute stage2; do
  expect "losses of $mode in two ways" "$([ "$(value by_native "modes['$mode']['losses']")" != "$(value by_fp32 "modes['$mode']['losses']")" ] && echo differ)" differ
done

[ $failures = 0 ] && echo "all well"
exit $failures
