#!/usr/bin/env bash
# The cost model beside the passes that run_rounds.sh measured: predicted against measured for every row, and the
# constants of the machine that fit best. Needs no card and a few seconds.
#
#   fit_cost_model.sh [--bin DIR] [--hardware FILE] [--commit NAME] [--unfetched] [--also NAMES] [--fixed NAMES] [--check] CSV...
#
# --bin holds fit_cost_model and make_synth (default: build/release/bin). --hardware is the description to start from
# (default: configs/hardware/h200-16core.yaml); what is fitted is printed, to be copied there. --commit takes only the
# rows of one build; --unfetched: they fetched no experts ahead (builds before 6688462). --also names rates of kernels that may change as well (default: cpu.expert_core_gbps.IQ3_XXS), --fixed
# constants that may not. --check fits nothing.
set -uo pipefail
# shellcheck source=bench/common.sh
. "$(dirname -- "$(readlink -f -- "$0")")/common.sh"
bin=$root/build/release/bin hardware=$root/configs/hardware/h200-16core.yaml commit='' check='' fixed='' unfetched=''
also=cpu.expert_core_gbps.IQ3_XXS
read_flags bin hardware commit also fixed check! unfetched! -- "$@"
((${#rest[@]})) || usage
need_programs fit_cost_model make_synth
files=$(mktemp -d "${TMPDIR:-/tmp}/tandem-fit-XXXXXX") || exit 2
trap 'rm -rf -- "$files"' EXIT
models=()
for name in q3 q4; do
  layers=${layers_of[$name]}
  model=$files/$name-$layers-layers.gguf census=$files/$name.census.csv
  recipe "$name"
  "$bin/make_synth" "$model" --empty "${recipe[@]}" --layers "$layers" --census "$census" >/dev/null || exit 2
  models+=(--model "$model,$census")
done
flags=(--hardware "$hardware")
[[ $commit ]] && flags+=(--commit "$commit")
[[ $check ]] || flags+=(--fit --also "$also")
[[ $unfetched ]] && flags+=(--unfetched)
[[ $fixed ]] && flags+=(--fixed "$fixed")
"$bin/fit_cost_model" "${rest[@]}" "${models[@]}" "${flags[@]}"
