# shellcheck shell=bash disable=SC2034,SC2154
# Shared by the scripts of this folder; sourced, never run. Sets `root` (the checkout, absolute) and `me` (the name that
# messages start with). A script has its usage in its head comment, from the line with its own name on.

me=$(basename -- "$0")
root=$(dirname -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")")

usage() {
  awk -v me="$me" '/^#/ && index($0, me " ") { found = 1 } !/^#/ && NR > 1 { exit } found { sub(/^# ?/, ""); print }' "$0" >&2
  exit 2
}

# read_flags NAME... -- ARGUMENT...: for a NAME, --NAME VALUE sets the variable of that name; for NAME!, --NAME sets it
# to "yes". What is no flag goes to the array `rest`. Anything else prints the usage.
read_flags() {
  local names=" "
  while [[ $1 != -- ]]; do names+="$1 "; shift; done
  shift
  rest=()
  while (($#)); do
    local name=${1#--}
    if [[ $1 != --?* ]]; then
      rest+=("$1"); shift
    elif [[ $names == *" $name! "* ]]; then
      printf -v "$name" yes; shift
    elif [[ $names == *" $name "* && $# -ge 2 ]]; then
      printf -v "$name" %s "$2"; shift 2
    else
      usage
    fi
  done
}

# need_programs NAME...: they must be in $bin, perhaps with their libraries in lib/.
need_programs() {
  local program
  for program in "$@"; do
    [[ -x $bin/$program ]] || { echo "$me: $bin/$program: expected a program, found none" >&2; exit 2; }
  done
  if [[ -d $bin/lib ]]; then export LD_LIBRARY_PATH=$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
}

# The models of the table of rounds; the file of q4 has half of the layers. recipe NAME sets the array `recipe`, the flags
# of make_synth but for the layers.
declare -A layers_of=([q3]=48 [q4]=24)
recipe() {
  recipe=(--vocab 248320 --ngram-rows 1600000 --skew "0.41,0.92")
  case $1 in
    q3) recipe+=(--mtp --gate-up IQ3_XXS --down IQ4_NL) ;;
    q4) recipe+=(--gate-up Q4_K --down IQ4_NL) ;;
  esac
}
