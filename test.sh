#!/usr/bin/env bash
# Builds everything and runs the tests: ./test.sh [CTEST ARGUMENTS...], for example ./test.sh -R gguf. Tests that need
# what this machine lacks are listed as skipped. The last line is ctest's own closing line.
set -euo pipefail
me=test.sh
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=.ci/common.sh
source "$root/.ci/common.sh"

# With CUDA: for the cards that are here, or to see that it compiles for the reference card.
if [[ -z ${TANDEM_CUDA-}${TANDEM_CUDA_ARCHS-} ]]; then
  TANDEM_CUDA_ARCHS=$(cards_here)
  export TANDEM_CUDA_ARCHS=${TANDEM_CUDA_ARCHS:-86}
fi
lock_build
need_packages build test
configure release ON
build release
unlock_build
run_tests release "$root/build/test.log" "$@"
