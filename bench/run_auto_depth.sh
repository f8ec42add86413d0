#!/usr/bin/env bash
# The table of docs/performance.md, section "Drafting": automatic depth against fixed depths over forced text, for three
# texts with 20, 40 and 60 % of the experts on a card that the CPU plays. One cell is one process with one worker, on a
# processor of its own.
#
#   run_auto_depth.sh [--bin DIR] [--out DIR] [--machine NAME] [--jobs N] [--budget SECONDS] [--repeats N] [--quick]
#
# --bin holds tandem (default: build/release/bin), and perhaps lib/ with its libraries. OUT is --out, else $OUT, else
# ./auto-depth-out. --jobs is how many cells run at a time (default 9: all), at most one a processor that this process
# may use; processors that share no core come first. A cell that is not done when the budget (default 140) is over is
# stopped and named. Each cell's own table goes to OUT/TEXT-SLOTS.txt; all of them to OUT/auto_depth.csv, and a
# comparison to the standard output. --quick tries the script itself. The exit status is 1 when a cell is missing.
set -uo pipefail
# shellcheck source=bench/common.sh
. "$(dirname -- "$(readlink -f -- "$0")")/common.sh"
bin=$root/build/release/bin out=${OUT:-$PWD/auto-depth-out} machine='' jobs=9 budget=140 repeats=5 tokens=128 quick=''
read_flags bin out machine jobs budget repeats quick! -- "$@"
((${#rest[@]})) && usage
[[ $quick ]] && repeats=1 tokens=16
for number in "$jobs" "$budget" "$repeats"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] ||
    { echo "$me: --jobs, --budget, --repeats: expected a number from 1, found $number" >&2; exit 2; }
done
need_programs tandem
mkdir -p "$out" || exit 2
machine=${machine:-$(hostname)}

# The processors that this process may use: first one of each core, then those that share a core with one before.
allowed() {
  local ranges range
  IFS=, read -ra ranges <<< "$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)"
  for range in "${ranges[@]}"; do seq "${range%-*}" "${range#*-}"; done
}
firsts=() others=()
declare -A seen=()
for cpu in $(allowed); do
  core=$(cat "/sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list" 2> /dev/null || echo "$cpu")
  if [[ -v seen[$core] ]]; then others+=("$cpu"); else firsts+=("$cpu"); fi
  seen[$core]=yes
done
cpus=("${firsts[@]}" "${others[@]}")
((jobs > ${#cpus[@]})) && jobs=${#cpus[@]}
((jobs > ${#firsts[@]})) && echo "warning: $jobs cells at a time on ${#firsts[@]} cores: some share a core" >&2

cells=()
for text in prose code chat; do for slots in 58 115 173; do cells+=("$text-$slots"); done; done

# Cells k, k + jobs, ... on one processor.
column() {
  local k=$1 i cell
  for ((i = k; i < ${#cells[@]}; i += jobs)); do
    cell=${cells[i]}
    timeout "$((budget > SECONDS ? budget - SECONDS : 1))" taskset -c "${cpus[k]}" "$bin/tandem" bench decode \
      "$root/models/flash-next-nano-q4.gguf" --text "$root/tests/golden/eval/${cell%-*}.txt" \
      --drafts auto,off,0,1,2,3,4 --mode forced --segments 4 --tokens "$tokens" --repeats "$repeats" --workers 1 \
      --context 1024 --device cpu --slots "${cell#*-}" --adapt off > "$out/$cell.txt" 2> "$out/$cell.err" ||
      echo "FAILED ($?)" >> "$out/$cell.txt"
  done
}
load_before=$(cut -d' ' -f1-3 /proc/loadavg)
for ((k = 0; k < jobs && k < ${#cells[@]}; ++k)); do column "$k" & done
wait

csv=$out/auto_depth.csv
columns=date,commit,machine,cpu,load,jobs,text,slots,drafts,tok_s,low,high
echo "$columns,tokens_per_round,draft_ms,pass_ms,sample_ms,round_ms,misses" > "$csv"
commit=$(git -C "$root" rev-parse --short HEAD 2> /dev/null || echo unknown)
model=$(awk -F': ' '/^model name/ {gsub(",", "", $2); print $2; exit}' /proc/cpuinfo)
start="$(date +%F),$commit,$machine,$model,${load_before%% *},$jobs"
missing=0
for cell in "${cells[@]}"; do
  # drafts tok/s (low-high) tok/rnd draft pass (wait) sample round misses ...
  rows=$(awk -v start="$start,${cell%-*},${cell#*-}" '
    $1 ~ /^(auto|off|[0-8])$/ && NF >= 10 {
      split(substr($3, 2, length($3) - 2), range, "-")
      print start "," $1 "," $2 "," range[1] "," range[2] "," $4 "," $5 "," $6 "," $8 "," $9 "," $10
    }' "$out/$cell.txt")
  if (($(wc -l <<< "$rows") != 7)); then
    echo "missing: $cell: $(tail -n 1 "$out/$cell.err" "$out/$cell.txt" 2> /dev/null | tr '\n' ' ')"
    missing=1
  else
    echo "$rows" >> "$csv"
  fi
done
echo "$machine, $jobs cells at a time, load before $load_before, $SECONDS s; tok/s (tokens a round)"
awk -F, '
  NR == 1 { next }
  {
    cell = sprintf("%-6s%4d", $7, $8)
    if (!(cell in best)) order[++count] = cell
    shown[cell] = shown[cell] sprintf(" %s %.0f (%.2f)", $9, $10, $13)
    if ($9 == "auto") { auto[cell] = $10; spread[cell] = 100 * ($12 / $11 - 1); best[cell] += 0 }
    else if ($10 > best[cell]) { best[cell] = $10; which[cell] = $9 }
    if ($9 == "3") three[cell] = $10
  }
  END {
    for (i = 1; i <= count; ++i) {
      c = order[i]
      printf "%s: auto %+.1f %% against the best other (%s), %.2f times 3, its repeats spread by %.1f %%;%s\n", c,
             100 * (auto[c] / best[c] - 1), which[c], auto[c] / three[c], spread[c], shown[c]
    }
  }' "$csv"
exit "$missing"
