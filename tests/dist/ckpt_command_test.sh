#!/bin/bash
# `zero ckpt` from outside, on checkpoints that training runs made: what it says, what it leaves, exit codes.
# Usage: ckpt_command_test.sh <path of zero> <path of checkpoint_maker>
set -u
zero=$(realpath "$1")
maker=$(realpath "$2")
source "$(dirname "$0")/../support/command_test.sh"
cd "$work" || exit 1
export ZERO_LOG_LEVEL=error

ckpt() { "$zero" ckpt "$@" > out 2> err; }
# says <exit code> <part of the output> <command...>
says() {
  local code=$1 part=$2; shift 2
  ckpt "$@"
  expect "exit code of 'zero ckpt $*'" $? "$code"
  expect "standard error of 'zero ckpt $*'" "$(cat err)" ""
  grep -qF -- "$part" out || fail "'zero ckpt $*' says '$(cat out)', want '$part'"
}
# refused <part of the message> <command...>: one line, exit code 2, nothing else
refused() {
  local part=$1; shift
  ckpt "$@"
  expect "exit code of 'zero ckpt $*'" $? 2
  expect "output of 'zero ckpt $*'" "$(cat out)" ""
  grep -q "^zero: error: .*$part" err || fail "'zero ckpt $*' says '$(cat err)', want '$part'"
  expect "lines of the message of 'zero ckpt $*'" "$(wc -l < err)" 1
}
# flip <file> <offset>: one bit
flip() {
  local byte
  byte=$(od -An -tu1 -j "$2" -N 1 "$1")
  printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
files_of() { (cd "$1" && find . -type f ! -name .lock | sort | xargs sha256sum); }
count() { grep -cF -- "$1" "$2"; }
tags() { find ckpt -mindepth 1 -maxdepth 1 -type d ! -name '.*' -printf '%f\n' | sort | tr '\n' ' '; }

"$maker" ckpt 2 3 bf16 one=24 two=48 inside=60 || { echo "FAILED: no checkpoints"; exit 1; }
"$maker" alone 1 0 bf16 two=48 || { echo "FAILED: no checkpoints"; exit 1; }
files_of ckpt > made

# ---- list ----
says 0 "two" list ckpt
expect "checkpoints listed" "$(wc -l < out)" 3
grep -qE '^  one +step 1 .* 2 ranks' out || fail "list: $(cat out)"
grep -qE '^\* inside +step 2 .* 2 ranks' out || fail "list does not mark the latest: $(cat out)"
mkdir empty
says 0 "no checkpoints in empty" list empty

# ---- inspect: what the manifest has ----
says 0 "step 2, by 2 ranks, 2 files" inspect ckpt/two
grep -q '^checkpoint  two ' out || fail "inspect: $(head -n 1 out)"
grep -q '^parameters  1[0-9],[0-9][0-9][0-9]$' out || fail "inspect: $(grep parameters out)"
grep -qF ' micro_batches = 48' out || fail "inspect: no micro-batches"
grep -q '^client  *end = 48$' out || fail "inspect: no client state"
grep -qF ' zero_optimization.stage = 3' out || fail "inspect: no configuration"
grep -qE '^  weight +embedding.weight +F32 +\[53, 19\] +4.0 kB(  2 pieces)?$' out || fail "inspect: no tensors"
grep -qE '^  buffer +batch_norm.running_mean +BF16 +\[61\] +122 bytes$' out || fail "inspect: no buffers"
expect "optimizer states without --all" "$(count exp_avg out)" 0
says 0 "exp_avg_sq" inspect ckpt/two --all
expect "tensors" "$(grep -cE '^  (weight|exp_avg|exp_avg_sq|buffer|random_state) ' out)" "$(count '"kind":' ckpt/two/manifest.json)"
says 0 "checkpoint  inside " inspect ckpt
says 0 "gradient_sum" inspect ckpt --all

# ---- verify ----
says 0 "ckpt/two: every byte is as it was written" verify ckpt/two
says 0 "ckpt/inside: every byte is as it was written" verify ckpt
cp -r ckpt/two intact
for file in rank_00000.safetensors rank_00001.safetensors manifest.json; do
  for offset in 30 $(($(stat -c %s "ckpt/two/$file") - 3)); do
    flip "ckpt/two/$file" "$offset"
    says 1 "DAMAGED " verify ckpt/two
    grep -qF "$file" out || fail "verify does not name $file: $(cat out)"
    expect "lines about one flipped bit of $file" "$(count DAMAGED out)" 1
    cp "intact/$file" "ckpt/two/$file"
  done
done
truncate -s -1 ckpt/two/rank_00001.safetensors
says 1 "it was cut off or replaced" verify ckpt/two
says 0 "INCOMPLETE" list ckpt
cp intact/rank_00001.safetensors ckpt/two/
mv ckpt/two/rank_00000.safetensors aside
says 1 "rank_00000.safetensors" verify ckpt/two
mv aside ckpt/two/rank_00000.safetensors
says 0 "every byte is as it was written" verify ckpt/two

# ---- export: files, sizes, what was there before ----
for dtype in fp32 bf16 fp16 module; do
  says 0 "tensors, " export ckpt/two "out_$dtype" --dtype $dtype
  expect "files of $dtype" "$(ls "out_$dtype")" model.safetensors
done
[ "$(stat -c %s out_bf16/model.safetensors)" -lt "$(($(stat -c %s out_fp32/model.safetensors) * 2 / 3))" ] ||
  fail "bf16 is not smaller than fp32"
cmp -s out_bf16/model.safetensors out_module/model.safetensors || fail "the module held bf16"
cmp -s out_bf16/model.safetensors out_fp16/model.safetensors && fail "fp16 is bf16"
head -c 300 out_fp32/model.safetensors | grep -qF '"format":"pt"' || fail "no metadata"
echo mine > out_fp32/config.json
refused "out_fp32/model.safetensors is there already: export to another folder, or over it with --overwrite" export ckpt/two out_fp32
says 0 "model.safetensors.index.json" export ckpt/two out_fp32 --max-file-gb 0.00002 --overwrite
expect "the old file" "$(ls out_fp32 | grep -c '^model.safetensors$')" 0
[ "$(ls out_fp32 | grep -cE '^model-0000[1-9]-of-0000[1-9].safetensors$')" -gt 2 ] || fail "sharded: $(ls out_fp32)"
expect "a file of somebody else's" "$(cat out_fp32/config.json)" mine
says 0 "out_fp32/model.safetensors" export ckpt/two out_fp32 --overwrite
expect "the shards" "$(ls out_fp32 | tr '\n' ' ')" "config.json model.safetensors "
header=$((8 + $(od -An -tu8 -N 8 ckpt/two/rank_00000.safetensors)))
flip ckpt/two/rank_00000.safetensors $((header + 100))
refused "is damaged: bytes $header to" export ckpt/two out_damaged
expect "files of a failed export" "$(ls out_damaged)" ""
cp intact/rank_00000.safetensors ckpt/two/

says 0 '"tensors": ' export ckpt/two out_json --json
expect "files of export --json" "$(python3 -c 'import json; print(len(json.load(open("out"))["files"]))')" 1
refused "ckpt/two is one checkpoint; give the folder that it is in" prune ckpt/two --keep-last 1

# ---- diff ----
"$maker" fewer 1 3 bf16 one=24 && "$maker" more 2 3 bf16 one=24 || fail "no checkpoints"
ckpt diff fewer/one more/one
grep -q "^  random_state .*: only in B$" out || fail "streams of a rank that one has not: $(cat out)"
grep -q "^  random_state .*elements differ" out && fail "$(cat out)"
total=$(count '"kind":' ckpt/two/manifest.json)
says 0 "$total of $total tensors are equal, bit for bit" diff ckpt/two ckpt/two
expect "lines about equal checkpoints" "$(wc -l < out)" 1
says 1 "state/global_steps: 1 and 2" diff ckpt/one ckpt/two
grep -qE '^  weight +embedding.weight +[0-9,]+ elements differ, by at most [0-9.e-]+$' out || fail "diff: $(cat out)"
grep -qE '^  weight +frozen\.' out && fail "diff: frozen parameters differ"
# Another number of ranks, another stage: the same numbers. Buffers are each rank's own.
says 1 "world size: 2 and 1" diff ckpt/two alone/two
expect "tensors that differ" "$(grep -cE '^  (weight|exp_avg|exp_avg_sq) ' out)" 0
grep -qE '^  random_state rank_00001.cpu: only in A$' out || fail "diff: $(cat out)"
cp -r ckpt/two altered
flip altered/rank_00000.safetensors $((header + 100))
refused "is damaged" diff altered ckpt/two

# ---- on a terminal: a bar while it lasts, and gone afterwards ----
for command in "verify ckpt/two" "export ckpt/two out_terminal" "diff ckpt/two ckpt/two"; do
  TERM=xterm script -qec "'$zero' ckpt $command" /dev/null < /dev/null > out 2>&1 || fail "'zero ckpt $command' on a terminal: $(cat out)"
  tr '\r' '\n' < out > lines
  [ "$(grep -aoE '^\[[#.]{40}\] +[0-9]+ %  .* of .*B' lines | sort -u | wc -l)" -ge 2 ] || fail "no bar for $command: $(cat -v out)"
  grep -aqE '^\[#{40}\] 100 %' lines || fail "the bar of $command does not come to its end: $(cat -v out)"
  [ "$(grep -ac $'^\x1b\\[K' lines)" = 1 ] || fail "the bar of $command stays: $(cat -v out)"
done
rm -rf out_terminal

# ---- what only reads leaves everything as it was ----
files_of ckpt > now
cmp -s made now || fail "something changed in ckpt"

# ---- bad input ----
echo text > a_file
refused "there is no folder 'nowhere'" list nowhere
refused "a_file" list a_file
for command in inspect verify "export:out_wrong" diff:ckpt/two; do
  refused "nowhere" "${command%%:*}" nowhere $([[ $command = *:* ]] && echo "${command#*:}")
  refused "empty" "${command%%:*}" empty $([[ $command = *:* ]] && echo "${command#*:}")
done
refused "nowhere" diff ckpt/two nowhere
refused "a_file" export ckpt/two a_file/out
refused "there is no folder 'nowhere'" prune nowhere --keep-last 1
[ -e out_wrong ] && fail "export of nothing left a folder"
# About the command line itself; these may be followed by where help is.
for arguments in "" "list" "frobnicate ckpt" "export ckpt/two" "export ckpt/two out --dtype int8" "prune ckpt" \
  "prune ckpt --keep-last 0" "export ckpt/two out --max-file-gb 0" "list ckpt --no-such-option"; do
  ckpt $arguments
  expect "exit code of 'zero ckpt $arguments'" $? 2
  grep -q '^zero: error: ' err || fail "'zero ckpt $arguments' says '$(cat err)'"
done

# ---- a run's folder is as good; JSON for scripts ----
mkdir run && cp -r ckpt run/checkpoints
says 0 "two" list run
expect "checkpoints listed" "$(wc -l < out)" 3
says 0 "step 2" inspect run
says 0 "every byte is as it was written" verify run
says 0 '"global_steps": 2' inspect run --json
says 0 '"latest": true' list run --json
says 0 '"problems": []' verify run --json
says 1 '"different": [' diff run/checkpoints/one run --json
says 0 '"removed": [' prune run --keep-last 1 --dry-run --json
for command in "list run" "inspect run" "verify run" "diff run run" "prune run --keep-last 2 --dry-run"; do
  ckpt $command --json
  python3 -c 'import json, sys; json.load(open("out"))' || fail "'zero ckpt $command --json' is no JSON: $(cat out)"
done

# ---- the only intact checkpoint stays ----
for tag in inside two; do flip run/checkpoints/$tag/rank_00000.safetensors $((header + 100)); done
says 0 "DAMAGED  inside stays" prune run --keep-last 1
expect "tags after that" "$(ls run/checkpoints | grep -v latest | tr '\n' ' ')" "inside one "

# ---- prune ----
mkdir -p ckpt/.saving-0123 ckpt/.removing-4567
echo half > ckpt/.saving-0123/rank_00000.safetensors
says 0 "would remove one" prune ckpt --keep-last 2 --dry-run
grep -qF "would remove .saving-0123 (an interrupted save)" out || fail "prune: $(cat out)"
files_of ckpt | grep -v saving > now
cmp -s made now || fail "a dry run changed something"
flock ckpt/.lock "$zero" ckpt prune ckpt --keep-last 1 > out 2> err
expect "exit code while somebody saves" $? 2
grep -qF "somebody else saves or prunes" err || fail "prune: $(cat err)"
expect "tags after that" "$(tags)" "inside one two "
says 0 "removed one" prune ckpt --keep-last 2
expect "tags after pruning to 2" "$(tags)" "inside two "
expect "leftovers" "$(find ckpt -name '.saving*' -o -name '.removing*')" ""
# The newest is damaged: it counts for nothing, and the one before stays.
truncate -s -1 ckpt/inside/rank_00000.safetensors
says 0 "nothing to remove" prune ckpt --keep-last 1
expect "tags beside a damaged one" "$(tags)" "inside two "
says 0 "every byte is as it was written" verify ckpt/two
# The latest stays, also when it is not the newest.
"$maker" ckpt 2 3 bf16 three=72
echo two > ckpt/latest
says 0 "* two" list ckpt
says 0 "nothing to remove" prune ckpt --keep-last 1
expect "tags with an older latest" "$(tags)" "inside three two "

[ "$failures" = 0 ] && echo "zero ckpt: all well"
exit $((failures > 0))
