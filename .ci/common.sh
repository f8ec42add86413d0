# shellcheck shell=bash disable=SC2154
# Shared by tandem.sh, test.sh and .ci/run; sourced, never run. Expects `root` (the checkout, absolute) and `me` (the
# name that messages start with). Everything here speaks on stderr and reads nothing from stdin: both belong to the
# program that is started at the end.

under=() # a command in front of ninja and ctest, for example setarch -R

say() { printf '%s: %s\n' "$me" "$*" >&2; }

# packages_of GROUP...: the package names of these groups, one a line, from the one list.
packages_of() {
  local group package wanted
  while read -r group package; do
    for wanted in "$@"; do
      if [[ $group == "$wanted" ]]; then printf '%s\n' "$package"; fi
    done
  done <"$root/.ci/packages.txt"
}

# missing_packages PACKAGE...: those that dpkg does not call installed.
missing_packages() {
  local known package
  known=$'\n'$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null </dev/null || true)$'\n'
  for package in "$@"; do
    if [[ $known != *$'\n'"installed $package"$'\n'* ]]; then printf '%s\n' "$package"; fi
  done
}

# install_packages PACKAGE...: with apt, as root or through a sudo that asks no password. Fails when neither serves.
install_packages() {
  local as_root=()
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null </dev/null || return 1
    as_root=(sudo -n)
  fi
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say "installing $# packages with apt: $*"
  # A failing update may still leave usable lists (one dead third-party source is enough to fail it).
  run_logged "$root/build/packages.log" "${apt[@]}" update || say "apt-get update failed; trying with the lists at hand"
  run_logged "$root/build/packages.log" "${apt[@]}" install -y --no-install-recommends "$@"
}

# need_packages GROUP...: returns once every package of these groups is there, else exits 2 after one line to run.
# A stamp that is newer than dpkg's state and holds the same list makes the next call free.
need_packages() {
  local stamp="$root/build/.packages-$*" wanted missing
  if ! command -v dpkg-query >/dev/null; then
    say "no dpkg here, so dependencies are not checked; the list is in .ci/packages.txt"
    return 0
  fi
  mapfile -t wanted < <(packages_of "$@")
  if [[ $stamp -nt /var/lib/dpkg/status && $(<"$stamp") == "${wanted[*]}" ]]; then return 0; fi
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if ((${#missing[@]})); then
    install_packages "${missing[@]}" || true
    mapfile -t missing < <(missing_packages "${wanted[@]}")
  fi
  if ((${#missing[@]})); then
    say "missing packages; run this line, then start again:"
    printf 'sudo apt-get install -y %s\n' "${missing[*]}" >&2
    exit 2
  fi
  printf '%s\n' "${wanted[*]}" >"$stamp"
}

# run_logged LOG COMMAND...: output goes to LOG alone; the last 40 lines are shown when the command fails.
run_logged() {
  local log=$1
  shift
  if "$@" >"$log" 2>&1 </dev/null; then return 0; fi
  tail -n 40 -- "$log" >&2
  say "that failed: $* (whole log: $log)"
  return 1
}

# Compile jobs: one a core, but no more than the memory that is free can feed (about 1.5 GB each).
job_count() {
  local cores name value unit limit by_memory
  cores=$(nproc)
  while read -r name value unit; do
    if [[ $name == MemAvailable: && $unit == kB ]]; then by_memory=$((value / 1500000)); fi
  done </proc/meminfo
  # A container may be allowed less than the machine has.
  if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit =~ ^[0-9]+$ ]]; then
    if ((limit / 1500000000 < by_memory)); then by_memory=$((limit / 1500000000)); fi
  fi
  if ((by_memory < 1)); then by_memory=1; fi
  printf '%s\n' $((cores < by_memory ? cores : by_memory))
}

# lock_build: one build of this checkout at a time. The lock is file descriptor 9; unlock_build drops it.
lock_build() {
  mkdir -p -- "$root/build"
  exec 9>"$root/build/.lock"
  if flock -n 9; then return 0; fi
  say "another build of this checkout is running; waiting for it"
  flock 9
}
unlock_build() { exec 9>&-; }

# toolchain_key: what a configured build directory depends on beside the CMake files. A moved checkout, another
# compiler or a CUDA compiler that appeared asks for a fresh configuration.
toolchain_key() {
  printf '%s\n' "$root" "cuda=${TANDEM_CUDA:-AUTO} archs=${TANDEM_CUDA_ARCHS-}" "$(command -v c++)" "$(command -v nvcc || true)" "$(command -v ccache || true)"
  if [[ -x /usr/local/cuda/bin/nvcc ]]; then printf '/usr/local/cuda/bin/nvcc\n'; fi
}

# cards_here: compute capabilities of this machine's cards, as TANDEM_CUDA_ARCHS wants them ("86;89"); nothing without.
cards_here() {
  local found=''
  if command -v nvidia-smi >/dev/null; then
    found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep -E '^[0-9]+$' | sort -nu | paste -sd ';' -) || true
  fi
  printf '%s' "$found"
}

# choose_cuda: for ./tandem.sh, unless the caller has chosen. A build for the cards of this machine takes a fraction of
# the time, and without a card no kernel would run; but what ./test.sh has configured with CUDA is kept.
choose_cuda() {
  if [[ -n ${TANDEM_CUDA-}${TANDEM_CUDA_ARCHS-} ]]; then return 0; fi
  local stamp="$root/build/release/.configured" line=''
  if [[ -r $stamp ]]; then line=$(grep -m 1 '^cuda=AUTO ' "$stamp") || true; fi
  if [[ -n $line ]]; then
    TANDEM_CUDA_ARCHS=${line#*archs=}
  else
    TANDEM_CUDA_ARCHS=$(cards_here)
    if [[ -z $TANDEM_CUDA_ARCHS ]]; then export TANDEM_CUDA=OFF; fi
  fi
  export TANDEM_CUDA_ARCHS
}

# configure PRESET TESTS: makes build/PRESET ready for ninja. TESTS is ON or KEEP (as it was; OFF the first time), so
# that ./tandem.sh never throws away what ./test.sh has set up.
configure() {
  local preset=$1 tests=$2 stamp="$root/build/$1/.configured" before='' key
  if [[ -r $stamp ]]; then before=$(<"$stamp"); fi
  if [[ $tests == KEEP ]]; then
    tests=OFF
    if [[ $before == tests=ON$'\n'* ]]; then tests=ON; fi
  fi
  key="tests=$tests"$'\n'$(toolchain_key)
  if [[ $before == "$key" && $stamp -nt "$root/CMakePresets.json" ]]; then return 0; fi
  say "configuring build/$preset"
  mkdir -p -- "$root/build/$preset"
  rm -f -- "$stamp"
  if ! (cd -- "$root" && run_logged "$root/build/configure.log" \
    cmake --preset "$preset" --fresh "-DTANDEM_TESTS=$tests" \
      "-DTANDEM_CUDA=${TANDEM_CUDA:-AUTO}" "-DTANDEM_CUDA_ARCHS=${TANDEM_CUDA_ARCHS-}"); then
    rm -f -- "$root"/build/.packages-*
    exit 1
  fi
  printf '%s\n' "$key" >"$stamp"
}

# build PRESET [TARGET...]: runs ninja in build/PRESET. The whole log is build/build.log; exits on failure.
build() {
  local preset=$1 status=0 interrupted=0
  shift
  trap 'interrupted=1' INT
  # The reader ignores Ctrl-C so that ninja can finish removing half-written files before the pipe closes.
  NINJA_STATUS='[%f/%t] ' "${under[@]}" ninja -C "$root/build/$preset" -j "$(job_count)" "$@" 2>&1 </dev/null 9>&- |
    (trap '' INT && show_progress "$preset" "$root/build/build.log") || status=$?
  trap - INT
  if ((interrupted)); then
    say "build interrupted; start again to go on from here"
    exit 130
  fi
  if ((status)); then
    tail -n 40 -- "$root/build/build.log" >&2
    say "the build failed (whole log: $root/build/build.log)"
    rm -f -- "$root"/build/.packages-*
    exit 1
  fi
}

# show_progress NAME LOG: reads ninja's output, copies it to LOG and draws a bar on a terminal, or prints a short line
# every ten per cent elsewhere. Silent, and LOG left alone, when there was nothing to do.
show_progress() {
  local name=$1 log=$2 line percent width=80 bar shown=-1 on_terminal=0 drawn=0
  local start=$SECONDS
  if [[ -t 2 && ${TERM:-dumb} != dumb ]]; then
    on_terminal=1
    read -r _ width < <(stty size <&2 2>/dev/null || echo 24 80) || width=80
  fi
  while IFS= read -r line; do
    if [[ $line == 'ninja: no work to do.' || $line == 'ninja: Entering directory'* ]]; then continue; fi
    if ((!drawn)); then
      drawn=1
      exec 3>"$log"
    fi
    printf '%s\n' "$line" >&3
    # Step 0 is CMake running again before the real steps are counted.
    if [[ ! $line =~ ^\[([1-9][0-9]*)/([0-9]+)\]\  ]]; then continue; fi
    percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    if ((on_terminal)); then
      printf -v bar '%*s' $((percent / 4)) ''
      printf -v line 'building %s [%-25s] %3d%%  %d/%d  %d s' "$name" "${bar// /#}" "$percent" \
        "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - start))
      printf '\r%s\e[K' "${line:0:width-1}" >&2
    elif ((percent / 10 != shown)); then
      shown=$((percent / 10))
      printf 'building %s: %3d%% (%d of %d steps, %d s)\n' "$name" "$percent" "${BASH_REMATCH[1]}" \
        "${BASH_REMATCH[2]}" $((SECONDS - start)) >&2
    fi
  done
  if ((drawn && on_terminal)); then printf '\n' >&2; fi
}

# run_tests PRESET LOG [CTEST ARGUMENT...]: runs ctest on stdout with a copy in LOG, then repeats ctest's closing line
# ("N% tests passed, N tests failed out of N") as the last line. Returns what ctest returned; no test at all fails.
run_tests() {
  local preset=$1 log=$2 status=0
  shift 2
  "${under[@]}" ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error -j "$(nproc)" "$@" 2>&1 </dev/null |
    tee -- "$log" || status=$?
  closing_line "$log"
  return "$status"
}

# closing_line LOG: the last closing line in LOG, or a line that says there is none.
closing_line() {
  grep -E '% tests passed, .* out of [0-9]+' -- "$1" 2>/dev/null | tail -n 1 | grep . || printf 'no test ran\n'
}
