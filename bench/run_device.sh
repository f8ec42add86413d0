#!/usr/bin/env bash
# The whole table of one machine in a fixed time: read roof, expert kernels, decode of the nano model and of a
# synthetic one of the real width. CSV files and a log go to OUT.
#
#   run_device.sh [--bin DIR] [--out DIR] [--machine NAME] [--budget SECONDS] [--quick] [--busy]
#
# --bin holds bench_machine, bench_experts, bench_decode and make_synth (default: build/release/bin), and perhaps lib/
# with their libraries. OUT is --out, else $OUT, else ./bench-out. A step that would start after the budget is left out
# and named; a step that runs over its share is stopped, and what it measured so far is kept. --quick tries the script
# itself: small buffers, few types. --busy takes more and shorter samples, for machines that do other work as well. The
# exit status is 1 when a step failed.
set -uo pipefail
# shellcheck source=bench/common.sh
. "$(dirname -- "$(readlink -f -- "$0")")/common.sh"
bin=$root/build/release/bin out=${OUT:-$PWD/bench-out} machine='' budget=470 quick='' busy=''
read_flags bin out machine budget quick! busy! -- "$@"
((${#rest[@]})) && usage
[[ $busy ]] && sampling=(--sample-ms 1 --samples 41) || sampling=()
need_programs bench_machine bench_experts bench_decode make_synth
mkdir -p "$out" || exit 2
name=(--machine "${machine:-$(hostname)}")
scratch=$(mktemp -d "${TMPDIR:-/tmp}/tandem-bench-XXXXXX") || exit 2
trap 'rm -rf -- "$scratch"' EXIT
failed=0

# step SECONDS COMMAND...: runs one command within its share of the time.
step() {
  local share=$1 left=$((budget - SECONDS)) start=$SECONDS status=0
  shift
  if ((left < 5)); then
    echo "== left out, the time is over: $*"
    return
  fi
  echo "== $(basename -- "$1") ${*:2}"
  timeout "$((share < left ? share : left))" "$@" || status=$?
  case $status in
    0) ;;
    124) echo "== stopped after its share of the time" ;;
    *) echo "== FAILED ($status)"; failed=1 ;;
  esac
  echo "== $((SECONDS - start)) s, $SECONDS s in all"
}

processors=$(nproc)
counts=(1)
for count in 2 4 8 12 16 24 32; do ((count < processors)) && counts+=("$count"); done
((processors > 1)) && counts+=("$processors")

all_steps() {
  local experts=() small=() few=(--samples 3) layers=6 expert_count=512 tokens=48 count isa
  # The file and its packed form, twice 9.5 GB with 512 experts, should stay in memory.
  (($(awk '/^MemTotal/ {print $2}' /proc/meminfo) < 40000000)) && expert_count=128
  if [[ $quick ]]; then
    experts=(--types 'Q4_K,IQ4_NL' --buffer 128)
    small=(--buffer 128) few=(--samples 1)
    layers=4 expert_count=12 tokens=8
  fi
  step 30 "$bin/bench_machine" "${small[@]}" --csv "$out/machine.csv" "${name[@]}"
  for isa in $("$bin/bench_experts" --list | grep -vx -e row -e scalar | tac); do
    step 90 "$bin/bench_experts" --isa "$isa" "${sampling[@]}" "${experts[@]}" --csv "$out/experts.csv" "${name[@]}"
  done
  for count in "${counts[@]}"; do
    step 15 "$bin/bench_decode" "$root/models/flash-next-nano-q4.gguf" --workers "$count" --tokens 256 \
      --widths 1,2,4,8 "${small[@]}" --csv "$out/decode.csv" "${name[@]}"
  done
  local model=$scratch/synth-$layers-layers-q4.gguf
  step 60 "$bin/make_synth" "$model" --layers "$layers" --experts "$expert_count" --recipe q4
  if [[ -f $model ]]; then
    for count in $(printf '%s\n' "$processors" $((processors * 3 / 4)) $((processors / 2)) 1 | sort -rnu); do
      ((count > 0)) && step 40 "$bin/bench_decode" "$model" --workers "$count" --tokens "$tokens" --widths 1,2,4,8 \
        "${small[@]}" --csv "$out/decode.csv" "${name[@]}"
    done
    rm -f -- "$model"
  fi
  step 40 "$bin/bench_experts" --isa row,scalar --widths 1,4 "${few[@]}" "${experts[@]}" --csv "$out/experts.csv" \
    "${name[@]}"
  return "$failed"
}

all_steps 2>&1 | tee "$out/log.txt"
exit "${PIPESTATUS[0]}"
