#!/usr/bin/env bash
# Compiler launcher of .cu files: runs the given command, keeps what ptxas -v says beside the object (OBJECT.ptxas) and
# prints the rest, so that a build stays as quiet as that of a .cpp file.
set -u
object=''
previous=''
for argument in "$@"; do
  if [[ $previous == -o ]]; then object=$argument; fi
  previous=$argument
done
if [[ -z $object ]]; then exec "$@"; fi
log=$("$@" 2>&1)
status=$?
about='^(ptxas info|    [0-9]+ bytes stack frame)'
grep -E "$about" <<<"$log" >"$object.ptxas"
grep -Ev "$about" <<<"$log" | grep . >&2
exit $status
