#!/usr/bin/env bash
# Fails when a C++ or CUDA source differs from what clang-format 14 makes of it. Other versions format differently, so
# without version 14 this exits 77 (skipped). To mend: clang-format-14 -i FILE.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

formatter=''
for name in clang-format-14 clang-format; do
  if [[ $("$name" --version 2>/dev/null) == *' version 14.'* ]]; then
    formatter=$name
    break
  fi
done
if [[ -z $formatter ]]; then
  echo 'check_format: clang-format 14 is not installed (sudo apt-get install -y clang-format-14)' >&2
  exit 77
fi
mapfile -d '' -t files < <(find runtime placement cpu gpu tests bench -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0)
if ((${#files[@]} == 0)); then
  echo 'check_format: no sources found' >&2
  exit 1
fi
"$formatter" --dry-run --Werror "${files[@]}"
echo "check_format: ${#files[@]} files are formatted"
