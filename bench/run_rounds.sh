#!/usr/bin/env bash
# The tables of rounds and of drafting at full size on a machine with a GPU: two recipes, widths 1 to 8, hit rates by
# residency, predicted beside measured, the stages of one round; then ways of drafting at stated acceptances with 24 GiB
# of VRAM. CSV files and texts go to OUT.
#
#   run_rounds.sh [--bin DIR] [--out DIR] [--machine NAME] [--work DIR] [--passes N] [--chances LIST] [--tokens N] [--prompts] [--lending] [--fetch] [--quick]
#
# --bin holds bench_round, make_synth and tandem (default: build/release/bin), and perhaps lib/ with their libraries. OUT is
# --out, else $OUT, else ./bench-out. The models are written to --work (default /tmp): 60 GB, then 41 GB (half of the layers:
# times are to be doubled), removed in between. --passes: of a figure (30). --chances: that a draft is right (0.524,0.667,0.75), on
# --tokens of text (96). --prompts runs bench_prefill on the first model, too; --lending compares, in turns, what lending
# memory to experts brings (docs/placement.md), and the text of a long prompt's answer; --fetch, what fetching experts ahead
# brings. --quick tries the script itself: four layers.
set -uo pipefail
# shellcheck source=bench/common.sh
. "$(dirname -- "$(readlink -f -- "$0")")/common.sh"
bin=$root/build/release/bin out=${OUT:-$PWD/bench-out} machine='' work=/tmp quick='' passes=30 chances=0.524,0.667,0.75 tokens=96 prompts='' lending='' fetch=''
read_flags bin out machine work passes chances tokens prompts! lending! fetch! quick! -- "$@"
((${#rest[@]})) && usage
need_programs bench_round make_synth tandem
if [[ $prompts ]]; then need_programs bench_prefill; fi
mkdir -p "$out" || exit 2
files=$(mktemp -d "$work/tandem-rounds-XXXXXX") || exit 2
trap 'rm -rf -- "$files"' EXIT
failed=0

# rounds NAME: one recipe.
rounds() {
  local name=$1 layers=${layers_of[$1]}
  [[ $quick ]] && layers=4
  local model=$files/$name-$layers-layers.gguf census=$files/$name.census.csv
  recipe "$name"
  "$bin/make_synth" "$model" "${recipe[@]}" --layers "$layers" --census "$census" || { failed=1; return; }
  # Pages that are still being written take bandwidth from the first figures.
  local before=$SECONDS
  sync -- "$model"
  echo "written to the disk after $((SECONDS - before)) s more"
  # The first program on a fresh virtual machine waits for its host's memory, and its figures are up to a third too slow.
  "$bin/bench_round" "$model" --residency 0.3 --widths 1 --passes 1 >/dev/null || failed=1
  local flags=(--widths "1,2,4,5,8" --passes "$passes" --hardware "$root/configs/hardware/h200-16core.yaml"
    --csv "$out/round.csv" --machine "${machine:-$(hostname)}")
  "$bin/bench_round" "$model" --residency 0.3,0.357,0.41,1 --census "$census" "${flags[@]}" || failed=1
  "$bin/bench_round" "$model" --residency 0.3 --routes "$census" "${flags[@]}" || failed=1
  "$bin/bench_round" "$model" --residency 0.41 --census "$census" --widths 1,4 --passes "$passes" --stages |
    tee "$out/stages-$name.txt" || failed=1
  if [[ $name == q3 ]]; then
    drafting "$model" "$census"
    if [[ $lending ]]; then lending "$model" "$census"; fi
    if [[ $fetch ]]; then
      local how
      for how in off on on off; do
        echo "== experts fetched ahead: $how"
        "$bin/bench_round" "$model" --residency 0.41 --census "$census" --widths 1,2,4,8 --passes $((3 * passes)) --fetch-ahead "$how" || failed=1
      done | tee "$out/fetch-$name.txt"
    fi
    if [[ $prompts ]]; then
      "$bin/bench_prefill" "$model" --tokens 512,4096,32768 --chunk 4096 --part 1024 --residency 0.3 --csv "$out/prefill.csv" \
        --machine "${machine:-$(hostname)}" || failed=1
    fi
  fi
  rm -f -- "$model"
}

# drafting MODEL CENSUS: a text of which a draft is right with the stated chance. 0.524, 0.667 and 0.75 are 2.1, 3 and 4
# tokens a round for a chain without end.
drafting() {
  local chance policy=$files/policy.yaml
  printf 'census:\n  - {file: %s}\n' "$2" >"$policy"
  for chance in ${chances//,/ }; do
    echo "== drafts right with a chance of $chance"
    "$bin/tandem" bench decode "$1" --text "$root/tests/golden/eval/prose.txt" --device cuda:0 --vram 24GiB --context 4096 \
      --policy "$policy" --adapt off --lookup off --draft-vocab off --drafts auto,off,1,2,3,4 --mode forced --acceptance "$chance" \
      --segments 1 --prompt-tokens 32 --tokens "$tokens" --repeats 2 --temperature 0 --rounds "$out/rounds-$chance.csv" || failed=1
  done | tee "$out/drafting-$name.txt"
}

# lending MODEL CENSUS: nothing lent, the memory of prompts, and the free cache besides; then the other way round.
lending() {
  local how text=$root/tests/golden/eval/prose.txt lent=(keep prompts both both prompts keep)
  for how in keep prompts both; do
    printf 'census:\n  - {file: %s}\nmemory: {lend_prompt_memory: %s, lend_kv_cache: %s}\n' "$2" \
      "$([[ $how == keep ]] && echo false || echo true)" "$([[ $how == both ]] && echo true || echo false)" >"$files/$how.yaml"
  done
  for how in "${lent[@]}"; do
    echo "== lent memory: $how"
    "$bin/tandem" bench decode "$1" --text "$text" --device cuda:0 --vram 24GiB --context 32768 --policy "$files/$how.yaml" --adapt off \
      --lookup off --draft-vocab off --drafts off,1,2 --mode forced --acceptance 0.75 --segments 1 --prompt-tokens 512 --tokens "$tokens" \
      --repeats 2 --temperature 0 || failed=1
  done | tee "$out/lending-$name.txt"
  head -c 12000 "$text" >"$files/prompt.txt"
  for how in keep both; do
    "$bin/tandem" run "$1" --raw --prompt-file "$files/prompt.txt" --max-tokens 64 --greedy --device cuda:0 --vram 24GiB --context 32768 \
      --policy "$files/$how.yaml" --draft-vocab off --logits-hash >"$files/$how.txt" || failed=1
  done
  if cmp "$files/keep.txt" "$files/both.txt"; then echo "the same text, $(tail -1 "$files/both.txt")"; else failed=1; fi | tee -a "$out/lending-$name.txt"
}

rounds q3
rounds q4
exit $failed
