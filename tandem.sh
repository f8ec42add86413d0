#!/usr/bin/env bash
# Builds Tandem if needed and starts it: ./tandem.sh [SUBCOMMAND ARGUMENTS...]. Without arguments it chats with the
# small model of this repository. Everything about the build goes to stderr; stdin and stdout belong to the program.
set -euo pipefail
me=tandem.sh
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=.ci/common.sh
source "$root/.ci/common.sh"

choose_cuda
lock_build
need_packages build
configure release KEEP
build release tandem
unlock_build

if (($# == 0)); then set -- chat "$root/models/flash-next-nano-q4.gguf"; fi
exec "$root/build/release/bin/tandem" "$@"
