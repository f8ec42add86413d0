#!/usr/bin/env bash
# The table of rounds at full size on a machine with a GPU: two recipes, widths 1 to 8, hit rates by residency; predicted
# beside measured, and the stages of one round. CSV files go to OUT.
#
#   run_rounds.sh [--bin DIR] [--out DIR] [--machine NAME] [--work DIR] [--quick]
#
# --bin holds bench_round and make_synth (default: build/release/bin), and perhaps lib/ with their libraries. OUT is
# --out, else $OUT, else ./bench-out. The models are written to --work (default /tmp): 59 GB, then 41 GB (half of the layers:
# times are to be doubled), removed in between. --quick tries the script itself: four layers.
set -uo pipefail
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")
bin=$root/build/release/bin out=${OUT:-$PWD/bench-out} machine='' work=/tmp quick=''
while (($#)); do
  [[ $1 == --quick || $# -ge 2 ]] || set -- --help
  case $1 in
    --bin) bin=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --machine) machine=$2; shift 2 ;;
    --work) work=$2; shift 2 ;;
    --quick) quick=yes; shift ;;
    *) sed -n 5,10p "$0" >&2; exit 2 ;;
  esac
done
for program in bench_round make_synth; do
  [[ -x $bin/$program ]] || { echo "run_rounds.sh: $bin/$program: expected a program, found none" >&2; exit 2; }
done
mkdir -p "$out" || exit 2
[[ -d $bin/lib ]] && export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
files=$(mktemp -d "$work/tandem-rounds-XXXXXX") || exit 2
trap 'rm -rf -- "$files"' EXIT
failed=0

# rounds NAME LAYERS TYPE...: one recipe.
rounds() {
  local name=$1 layers=$2
  shift 2
  [[ $quick ]] && layers=4
  local model=$files/$name-$layers-layers.gguf census=$files/$name.census.csv
  "$bin/make_synth" "$model" --layers "$layers" --vocab 248320 --ngram-rows 1600000 "$@" --skew 0.41,0.92 \
    --census "$census" || { failed=1; return; }
  local flags=(--widths "1,2,4,5,8" --passes 40 --hardware "$root/configs/hardware/h200-16core.yaml"
    --csv "$out/round.csv" --machine "${machine:-$(hostname)}")
  "$bin/bench_round" "$model" --residency 0.3,0.36,0.41,1 --census "$census" "${flags[@]}" || failed=1
  "$bin/bench_round" "$model" --residency 0.3 "${flags[@]}" || failed=1
  "$bin/bench_round" "$model" --residency 0.41 --census "$census" --widths 1,4 --passes 30 --stages |
    tee "$out/stages-$name.txt" || failed=1
  rm -f -- "$model"
}

rounds q3 48 --gate-up IQ3_XXS --down IQ4_NL
rounds q4 24 --gate-up Q4_K --down IQ4_NL
exit $failed
