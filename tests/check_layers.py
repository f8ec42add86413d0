#!/usr/bin/env python3
"""Checks the shape of the source tree; exit status 1 and one line per violation when something is wrong.

  include directions   placement sees nothing of ours; runtime sees placement; cpu and gpu see runtime and placement,
                       never each other; runtime/main.cpp, tests and bench see all; nobody sees tests but tests and bench
  include paths        ours are quoted and written from the repository root, and exist
  include cycles       none between files
  headers              start with #pragma once; X.cpp and X.cu include X.h first, which proves that X.h stands alone;
                       --compile tries the headers for which no such source exists
  sources              every .cpp and .cu is listed by hand in a CMakeLists.txt, and every listed one exists
  conditionals         no #if on the platform outside cpu/isa*, cpu/kernels, gpu, tests/fuzz and the named exceptions
  size                 over 500 lines is a warning, not a violation

Usage: check_layers.py [--root DIR] [--compile] | --self-test
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SEES = {
    "placement": {"placement"},
    "runtime": {"runtime", "placement"},
    "cpu": {"cpu", "runtime", "placement"},
    "gpu": {"gpu", "runtime", "placement"},
    "tests": {"tests", "bench", "cpu", "gpu", "runtime", "placement"},
    "bench": {"tests", "bench", "cpu", "gpu", "runtime", "placement"},
}
WIRING = "runtime/main.cpp"  # the one file that puts the machines together
CODE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
CONDITIONAL_ROOMS = re.compile(r"cpu/isa[^/]*$|cpu/kernels/|gpu/|tests/fuzz/")
# The maths that both compilers must read alike (docs/numerics.md R1) has to know which of them is reading.
CONDITIONAL_EXCEPTIONS = {("runtime/exact_math.h", "__CUDACC__")}
PLATFORM_MACRO = re.compile(
    r"\b(__\w*(x86|amd64|i386|aarch64|arm|ARM|AVX|SSE|FMA|F16C|BMI|linux|unix|APPLE|GNUC|clang|CUDA|NVCC|VNNI)\w*"
    r"|_WIN32|_WIN64|_MSC_VER|_M_X64|linux|unix|TANDEM_CUDA\w*|TANDEM_GPU\w*|__has_include)\b")
MAX_LINES = 500


def without_comments(text):
    """C++ text with comments blanked and line numbers kept. Strings survive; a quote is not mistaken for a comment."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def blank(match):
        return match.group() if match.group()[0] in "\"'" else re.sub(r"[^\n]", " ", match.group())

    return pattern.sub(blank, text)


def walk(root, wanted):
    """Paths relative to root, sorted, of the files that wanted(name) accepts; hidden and build directories are left out."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith((".", "build"))]
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files if wanted(f)]
    return sorted(found)


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = walk(root, lambda name: pathlib.Path(name).suffix in CODE_SUFFIXES)
        self.lines = {}     # path -> its lines without comments
        self.includes = {}  # path -> [(line number, included path, is quoted)]
        for path in self.paths:
            text = (self.root / path).read_text(encoding="utf-8")
            self.lines[path] = without_comments(text).split("\n")
            self.includes[path] = []
            for number, line in enumerate(self.lines[path], 1):
                match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
                if match:
                    self.includes[path].append((number, match.group(2), match.group(1) == '"'))

    def ours(self, path):
        return [target for _, target, _ in self.includes[path] if target in self.includes]


def room(path):
    return path.split("/")[0] if "/" in path else ""


def check_rooms(tree):
    for path in tree.paths:
        if room(path) not in SEES:
            yield f"{path}: source outside {', '.join(SEES)}"


def check_include_paths(tree):
    for path in tree.paths:
        for number, target, quoted in tree.includes[path]:
            if not quoted and room(target) in SEES:
                yield f"{path}:{number}: <{target}> is ours: write it in quotes"
            elif quoted and target not in tree.includes:
                yield f'{path}:{number}: "{target}" is no source of this tree, seen from the repository root'


def check_directions(tree):
    for path in tree.paths:
        allowed = SEES.get(room(path), set())
        if path == WIRING:
            allowed = allowed | {"cpu", "gpu"}
        for number, target, _ in tree.includes[path]:
            if room(target) in SEES and room(target) not in allowed:
                yield f"{path}:{number}: {room(path)} may not include {target}"


def check_cycles(tree):
    state = {}  # path -> "open" while on the current path, "done" afterwards

    def visit(path, trail):
        state[path] = "open"
        for target in tree.ours(path):
            if state.get(target) == "open":
                loop = trail[trail.index(target):] + [target]
                yield f"{target}: include cycle: {' -> '.join(loop)}"
            elif target not in state:
                yield from visit(target, trail + [target])
        state[path] = "done"

    for path in tree.paths:
        if path not in state:
            yield from visit(path, [path])


def check_headers(tree):
    for path in tree.paths:
        stem, suffix = os.path.splitext(path)
        if suffix in {".h", ".cuh"}:
            first = next((line for line in tree.lines[path] if line.strip()), "")
            if first.strip() != "#pragma once":
                yield f"{path}: does not start with #pragma once"
        elif stem + ".h" in tree.includes:
            if not tree.includes[path] or tree.includes[path][0][1] != stem + ".h":
                yield f"{path}: its first include is not {stem}.h"


def listed_sources(root):
    """(listing file, path) of every source named in a CMakeLists.txt, paths relative to root."""
    for listing in walk(root, lambda name: name == "CMakeLists.txt"):
        text = re.sub(r"#[^\n]*", "", (pathlib.Path(root) / listing).read_text(encoding="utf-8"))
        for name in re.findall(r"[^\s()\";]+\.(?:cpp|cu)(?![\w.])", text):
            for variable in ("CMAKE_SOURCE_DIR", "PROJECT_SOURCE_DIR"):
                if name.startswith("${" + variable + "}/"):
                    yield listing, os.path.normpath(name[len(variable) + 4:])
                    break
            else:
                name = name.replace("${CMAKE_CURRENT_SOURCE_DIR}/", "")
                yield listing, os.path.normpath(os.path.join(os.path.dirname(listing), name))


def check_sources(tree):
    listed = set()
    for listing, path in listed_sources(tree.root):
        listed.add(path)
        if "$" in path:
            yield f"{listing}: {path}: a source name made from a variable cannot be checked: list it by hand"
        elif not (tree.root / path).is_file():
            yield f"{listing}: {path} does not exist"
    for path in tree.paths:
        if path.endswith((".cpp", ".cu")) and path not in listed:
            yield f"{path}: in no CMakeLists.txt"


def check_conditionals(tree):
    for path in tree.paths:
        if CONDITIONAL_ROOMS.match(path):
            continue
        joined = ""  # a directive may go on over lines that end in a backslash
        for number, line in enumerate(tree.lines[path], 1):
            joined += line
            if line.endswith("\\"):
                continue
            match = re.match(r"\s*#\s*(?:if|ifdef|ifndef|elif|elifdef|elifndef)\b(.*)", joined)
            macro = match and PLATFORM_MACRO.search(match.group(1))
            if macro and (path, macro.group()) not in CONDITIONAL_EXCEPTIONS:
                yield f"{path}:{number}: conditional on the platform ({macro.group()})"
            joined = ""


def long_files(tree):
    return [f"{path}: {len(lines)} lines, over {MAX_LINES}" for path, lines in tree.lines.items()
            if len(lines) - (lines[-1] == "") > MAX_LINES]


CHECKS = (check_rooms, check_include_paths, check_directions, check_cycles, check_headers, check_sources,
          check_conditionals)


def violations(root):
    tree = Tree(root)
    if not tree.paths:
        return ["no sources found"], []
    return [line for check in CHECKS for line in check(tree)], long_files(tree)


def check_compiles(root):
    """Compiles, alone, each header that no source includes first. Left out: device headers and those of their
    tests, which need the CUDA toolkit, and the bodies in cpu/kernels that each instruction set's source includes after its own definitions."""
    tree = Tree(root)
    proved = {tree.includes[path][0][1] for path in tree.paths
              if path.endswith((".cpp", ".cu")) and tree.includes[path]}
    headers = [path for path in tree.paths if path.endswith(".h") and path not in proved
               and (room(path) != "gpu" or path == "gpu/gpu_ops.h")
               and not path.startswith(("cpu/kernels/", "tests/gpu/"))]

    def attempt(path):
        command = ["c++", "-std=c++20", "-fsyntax-only", "-I", str(root), "-include", path, "-x", "c++", os.devnull]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        first = [line for line in done.stderr.splitlines() if "error" in line][:3]
        return "" if done.returncode == 0 else "\n".join([f"{path}: does not compile alone:"] + first)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [line for line in pool.map(attempt, headers) if line]


# --- self-test: a clean tree passes, and each planted violation is found and named ---

CLEAN = {
    "CMakeLists.txt": "add_library(runtime\n  placement/plan.cpp runtime/gguf.cpp runtime/main.cpp cpu/isa.cpp)\n"
                      "add_subdirectory(tests) # not_a_source.cpp\n",
    "tests/CMakeLists.txt": "tandem_test(t SOURCES runtime/gguf_test.cpp ${CMAKE_SOURCE_DIR}/cpu/ops.cpp)\n",
    "placement/plan.h": "// Numbers only.\n\n#pragma once\n#include <vector>\n",
    "placement/plan.cpp": '#include "placement/plan.h"\n',
    "runtime/gguf.h": '#pragma once\n#include "placement/plan.h"\n#ifdef NDEBUG\n#endif\n// #include "cpu/ops.h"\n',
    "runtime/gguf.cpp": '#include "runtime/gguf.h"\n/* #include "gpu/x.h"\n#ifdef __AVX2__ */\n'
                        'const char* kUrl = "http://x";\n',
    "runtime/main.cpp": '#include "cpu/ops.h"\n#include "runtime/gguf.h"\n',
    "cpu/ops.h": '#pragma once\n#include "runtime/gguf.h"\n',
    "runtime/exact_math.h": "#pragma once\n#ifdef __CUDACC__\n#endif\n",
    "cpu/ops.cpp": '#include "cpu/ops.h"\n',
    "cpu/isa.cpp": "#if defined(__AVX2__)\n#endif\n",
    "tests/runtime/gguf_test.cpp": '#include "runtime/gguf.h"\n#include "cpu/ops.h"\n',
}

# (what is planted, file, its text, how the report must begin)
PLANTED = (
    ("upward include", "placement/plan.cpp", '#include "placement/plan.h"\n#include "runtime/gguf.h"\n',
     "placement/plan.cpp:2: placement may not include runtime/gguf.h"),
    ("runtime knows a machine", "runtime/gguf.cpp", '#include "runtime/gguf.h"\n#include "cpu/ops.h"\n',
     "runtime/gguf.cpp:2: runtime may not include cpu/ops.h"),
    ("one machine sees the other", "gpu/none.cu", '#include "cpu/ops.h"\n', "gpu/none.cu:1: gpu may not include"),
    ("code includes a test", "cpu/ops.cpp", '#include "cpu/ops.h"\n#  include "tests/accept.h"\n',
     "cpu/ops.cpp:2: cpu may not include tests/accept.h"),
    ("include from beside", "runtime/gguf.cpp", '#include "gguf.h"\n', 'runtime/gguf.cpp:1: "gguf.h" is no source'),
    ("our header in angle brackets", "cpu/ops.cpp", '#include "cpu/ops.h"\n#include <runtime/gguf.h>\n',
     "cpu/ops.cpp:2: <runtime/gguf.h> is ours"),
    ("include cycle", "placement/plan.h", '#pragma once\n#include "placement/cost.h"\n',
     "placement/plan.h: include cycle: placement/plan.h -> placement/cost.h -> placement/plan.h"),
    ("no include guard", "cpu/ops.h", '#include "runtime/gguf.h"\n', "cpu/ops.h: does not start with #pragma once"),
    ("own header not first", "cpu/ops.cpp", '#include <vector>\n#include "cpu/ops.h"\n',
     "cpu/ops.cpp: its first include is not cpu/ops.h"),
    ("source in no listing", "cpu/lost.cpp", "int x;\n", "cpu/lost.cpp: in no CMakeLists.txt"),
    ("listed source missing", "tests/CMakeLists.txt", "add_executable(t gone.cpp)\n",
     "tests/CMakeLists.txt: tests/gone.cpp does not exist"),
    ("source name from a variable", "tests/CMakeLists.txt", "add_executable(t ${name}_test.cpp)\n",
     "tests/CMakeLists.txt: tests/${name}_test.cpp: a source name made from a variable"),
    ("platform conditional", "runtime/gguf.cpp", '#include "runtime/gguf.h"\n#if defined(X) || \\\n  __x86_64__\n#endif\n',
     "runtime/gguf.cpp:3: conditional on the platform (__x86_64__)"),
    ("CUDA conditional", "runtime/main.cpp", '#ifdef TANDEM_CUDA\n#include "cpu/ops.h"\n#endif\n',
     "runtime/main.cpp:1: conditional on the platform (TANDEM_CUDA)"),
    ("excepted file, another macro", "runtime/exact_math.h", "#pragma once\n#ifdef __AVX2__\n#endif\n",
     "runtime/exact_math.h:2: conditional on the platform (__AVX2__)"),
    ("source in no room", "tools/x.cpp", "int x;\n", "tools/x.cpp: source outside"),
)


def write_tree(folder, files):
    for name, text in files.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def self_test():
    failures = []
    extra = {"placement/cost.h": '#pragma once\n#include "placement/plan.h"\n'}  # closes the planted cycle
    for what, name, text, expected in (("nothing", "", "", None),) + PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            write_tree(folder, {**CLEAN, **extra, **({name: text} if name else {})})
            found, _ = violations(folder)
        if expected is None and found:
            failures.append(f"the clean tree is reported: {found}")
        if expected is not None and not any(line.startswith(expected) for line in found):
            failures.append(f"{what}: expected '{expected}...', found {found}")
    with tempfile.TemporaryDirectory() as folder:
        write_tree(folder, {**CLEAN, "cpu/ops.cpp": '#include "cpu/ops.h"\n' + "\n" * MAX_LINES,
                            "cpu/isa.cpp": "\n" * MAX_LINES})
        found, warned = violations(folder)
        if found or [line.split(":")[0] for line in warned] != ["cpu/ops.cpp"]:
            failures.append(f"size: expected one warning for cpu/ops.cpp, found {found} {warned}")
    if shutil.which("c++"):
        with tempfile.TemporaryDirectory() as folder:
            write_tree(folder, {**CLEAN, "cpu/alone.h": "#pragma once\n#include <vector>\nstd::vector<int> v();\n",
                                "cpu/needy.h": "#pragma once\nstd::vector<int> v();\n"})
            found = check_compiles(folder)
            if [line.split(":")[0] for line in found] != ["cpu/needy.h"]:
                failures.append(f"headers alone: expected cpu/needy.h, found {found}")
    for line in failures:
        print(f"check_layers self-test: {line}", file=sys.stderr)
    print(f"check_layers self-test: {len(PLANTED) + 3} cases, {len(failures)} failed")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--compile", action="store_true", help="also compile headers that no source includes first")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    found, warned = violations(arguments.root)
    if arguments.compile:
        found += check_compiles(arguments.root)
    for line in warned:
        print(f"warning: {line}")
    for line in found:
        print(line, file=sys.stderr)
    print(f"check_layers: {len(found)} violations, {len(warned)} warnings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
