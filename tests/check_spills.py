#!/usr/bin/env python3
"""Fails when a kernel keeps registers in memory: reads what ptxas -v said of every .cu source (OBJECT.ptxas beside the
objects, kept by cmake/keep_ptxas.sh) and prints one line per kernel and architecture that spills.

Usage: check_spills.py BUILD_FOLDER [--list] [--known SOURCE]... | --self-test
  --list          also prints registers and spills of every kernel
  --known SOURCE  spills of this source (attention for attention.cu) are printed, but do not fail: known, and waiting for somebody
"""

import pathlib
import re
import sys
import tempfile

ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def kernels(log):
    """(kernel, architecture, registers, spill stores, spill loads) of one log."""
    name, frame = None, None
    for line in log.splitlines():
        if match := ENTRY.search(line):
            name, frame = match.groups(), None
        elif name and (match := FRAME.search(line)):
            frame = tuple(int(n) for n in match.groups())
        elif name and frame and (match := USED.search(line)):
            yield (*name, int(match.group(1)), frame[1], frame[2])
            name = None


def check(folder, arguments):
    """Number of spilling kernels, number of kernels; `arguments` are those of the command line after the folder."""
    found, bad = 0, 0
    for log in sorted(pathlib.Path(folder).rglob("*.ptxas")):
        for name, arch, registers, stores, loads in kernels(log.read_text(encoding="utf-8", errors="replace")):
            found += 1
            spills = stores or loads
            known = log.name.removesuffix(".cu.o.ptxas") in arguments
            bad += bool(spills) and not known
            if spills or "--list" in arguments:
                print(f"{log.name} {arch} {name}: {registers} registers, {stores} + {loads} bytes of spills"
                      f"{' (known)' if known else ''}")
    return bad, found


def self_test():
    entry = "ptxas info    : Compiling entry function '_Zk' for 'sm_90'\nptxas info    : Function properties for _Zk\n"
    used = "ptxas info    : Used 40 registers, used 1 barriers\n"
    clean = entry + "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n" + used
    spilt = entry + "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n" + used
    failures = []
    for text, arguments, expected in ((clean, [], (0, 1)), (spilt, [], (1, 1)), (clean + spilt + clean, [], (1, 3)),
                                      (spilt, ["--known", "x"], (0, 1)), (spilt, ["--known", "y"], (1, 1)),
                                      ("", [], (0, 0))):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "x.cu.o.ptxas").write_text(text, encoding="utf-8")
            if (result := check(folder, arguments)) != expected:
                failures.append(f"expected {expected}, found {result}")
    print(f"check_spills self-test: 6 cases, {len(failures)} failed")
    print("\n".join(failures), end="")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if not arguments:
        print(__doc__)
        return 2
    bad, found = check(arguments[0], arguments[1:])
    print(f"check_spills: {found} kernels, {bad} spill")
    if found == 0:
        print(f"no log of ptxas under {arguments[0]}: is this the build folder of a build with CUDA?")
    return 1 if bad or found == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
