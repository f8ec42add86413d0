#!/usr/bin/env python3
"""Checks that the documents speak of things that exist; exit status 1 and one line per violation otherwise.

  paths   every word in `backticks` or a code block that looks like a path of this repository, and every relative link.
          A path is looked up from the root, then from beside the document; a bare file name (in backticks) may be
          anywhere. `a/{b,c}.h` and `a/*.h` are expanded, `a/b` may stand for a/b.h. Names in capitals (`FILE.gguf`) stand for the reader's own files; build/ holds what a build makes.
  flags   every --flag in text, backticks or code blocks occurs in the sources, unless the line is another program's
          (cmake, ctest, git, ...)

Documents: README.md, AGENTS.md, docs/*.md, and the README.md of configs and bench.
Usage: check_docs.py [--root DIR] | --self-test
"""

import argparse
import itertools
import os
import pathlib
import re
import sys
import tempfile

DOCUMENTS = ("README.md", "AGENTS.md", "docs/*.md", "configs/README.md", "bench/README.md")
# Bare names with these endings are files of ours; with others (.gguf, .json, .txt) they may be the reader's.
SOURCE_SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".md", ".yaml")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*(?![\w-])")
OTHER_PROGRAMS = re.compile(
    r"\b(cmake|ctest|git|apt-get|apt|ninja|nvcc|clang-format|clang-format-14|clang-tidy|clang\+\+|g\+\+|perf|gdb|pip"
    r"|llama-\w+|docker|debootstrap)\s")
FLAG_SOURCES = (".cpp", ".cu", ".h", ".py", ".sh")


def walk(root):
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f != ".git" and not f.startswith("build")]
        found += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(found)


def spans(text):
    """(line number, kind, text) of a Markdown text; kind is "block" (fenced line), "code" (backticks) or "prose"."""
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or mark.group(1).startswith(fence)):
            fence = mark.group(1) if fence is None else None
        elif fence is not None:
            yield number, "block", line
        else:
            for index, part in enumerate(re.split(r"`([^`]+)`", line)):
                yield number, "code" if index % 2 else "prose", part


def expand(token):
    """a/{b,c}.h -> a/b.h, a/c.h"""
    pieces = [piece.split(",") for piece in re.split(r"[{}]", token)] if "{" in token else [[token]]
    return ["".join(choice) for choice in itertools.product(*pieces)]


class Repository:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.files = walk(root)
        self.names = {os.path.basename(path) for path in self.files}
        self.rooms = {path.split("/")[0] for path in self.files if "/" in path}
        self.flags = set()
        for path in self.files:
            # The checks themselves quote flags that must not exist.
            if (path.endswith(FLAG_SOURCES) or path == ".ci/run") and os.path.basename(path) != "check_docs.py":
                self.flags.update(FLAG.findall((self.root / path).read_text(encoding="utf-8", errors="replace")))
        # This program's own options.
        self.flags.update(("--root", "--self-test"))

    def is_path(self, token):
        if not re.fullmatch(r"[\w.{},*+/-]+", token) or token.startswith(("/", "build/", "../", "-")):
            return False
        name = token.rsplit("/", maxsplit=1)[-1]
        if re.fullmatch(r"[A-Z][A-Z0-9_]*(\.\w+)?", name) and name not in self.names and not name.endswith(".md"):
            return False
        if "/" in token:
            return token.split("/")[0] in self.rooms or (token.startswith("./") or name.endswith(SOURCE_SUFFIXES))
        return name.endswith(SOURCE_SUFFIXES) and not name.startswith("*")

    def exists(self, token, beside):
        token = token.removeprefix("./").rstrip("/")
        for folder in ("", beside):
            # `cpu/reference_ops` stands for the .h and the .cpp.
            if any(next(self.root.glob(os.path.join(folder, token + end)), None) for end in ("", ".*")):
                return True
        return "/" not in token and token in self.names


def check_document(repository, document):
    beside = os.path.dirname(document)
    text = (repository.root / document).read_text(encoding="utf-8")
    for number, kind, span in spans(text):
        where = f"{document}:{number}"
        for word in span.split() if kind != "prose" else ():
            token = re.sub(r":\d+(-\d+)?$", "", word.rstrip(",;"))  # `runtime/gguf.h:12` names a line
            if repository.is_path(token) and (kind == "code" or "/" in token):
                for path in expand(token):
                    if not repository.exists(path, beside):
                        yield f"{where}: `{path}` does not exist"
        if kind == "prose":
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", span):
                if "://" not in target and not target.startswith("mailto:") \
                        and not (repository.root / beside / target).exists():
                    yield f"{where}: link to {target}, which does not exist"
        if not OTHER_PROGRAMS.search(span):
            for flag in FLAG.findall(span):
                if flag not in repository.flags and not flag.startswith("--gtest"):
                    yield f"{where}: {flag} occurs in no source"


def violations(root):
    repository = Repository(root)
    documents = sorted(str(path.relative_to(root)) for pattern in DOCUMENTS for path in pathlib.Path(root).glob(pattern))
    if not documents:
        return ["no documents found"], documents
    return [line for document in documents for line in check_document(repository, document)], documents


# --- self-test: clean documents pass, and each planted mistake is found and named ---

CLEAN = {
    "runtime/gguf.h": "#pragma once\n",
    "runtime/gguf.cpp": "",
    "runtime/main.cpp": 'app.add_option("--vram,--max-tokens");\n',
    "models/nano.gguf": "",
    "configs/hardware/a.yaml": "",
    "tandem.sh": "",
    "AGENTS.md": "Rooms: `runtime/`, `runtime/gguf`, `configs/hardware/*.yaml`; `runtime/gguf.{h,cpp}`.\n",
    "README.md": "See [the page](docs/formats.md#types), [the site](https://example.org/x.h) and `main.cpp`.\n"
                 "`./tandem.sh run FILE.gguf --vram 3GiB`, `my.gguf`, `gate/up`, `build/release/bin/tandem`, `IDS.json`\n"
                 "```\ncmake --build build/release\n./tandem.sh chat --max-tokens 9\n```\n",
    "docs/formats.md": "`runtime/gguf.h:12`, `formats.md`, `../README.md`; use `cmake --preset tsan`, or --vram.\n",
}

PLANTED = (
    ("path", "README.md", "Read `runtime/gone.h`.\n", "README.md:1: `runtime/gone.h` does not exist"),
    ("folder", "README.md", "\nRead `runtime/old/`.\n", "README.md:2: `runtime/old/` does not exist"),
    ("bare file name", "docs/formats.md", "In `gone.cpp`.\n", "docs/formats.md:1: `gone.cpp` does not exist"),
    ("model path", "README.md", "`models/other.gguf`\n", "README.md:1: `models/other.gguf` does not exist"),
    ("one of a brace", "AGENTS.md", "`runtime/gguf.{h,cc}`\n", "AGENTS.md:1: `runtime/gguf.cc` does not exist"),
    ("glob", "AGENTS.md", "`configs/policies/*.yaml`\n", "AGENTS.md:1: `configs/policies/*.yaml` does not exist"),
    ("path after a command", "README.md", "`./tandem.sh chat models/x.gguf`\n",
     "README.md:1: `models/x.gguf` does not exist"),
    ("path in a block", "README.md", "```\n./tandem.sh chat models/x.gguf\n```\n",
     "README.md:2: `models/x.gguf` does not exist"),
    ("stem", "AGENTS.md", "`runtime/ggu`\n", "AGENTS.md:1: `runtime/ggu` does not exist"),
    ("command", "README.md", "`./start.sh now`\n", "README.md:1: `./start.sh` does not exist"),
    ("link", "docs/formats.md", "[x](gone.md)\n", "docs/formats.md:1: link to gone.md"),
    ("flag in backticks", "README.md", "`--vrom 3`\n", "README.md:1: --vrom occurs in no source"),
    ("flag in prose", "README.md", "Use --vrom.\n", "README.md:1: --vrom occurs in no source"),
    ("flag in a block", "README.md", "```\n./tandem.sh --max-token 3\n```\n", "README.md:2: --max-token occurs in no"),
    ("after a block", "README.md", "```\nx\n```\nIn `gone.cpp`.\n", "README.md:4: `gone.cpp` does not exist"),
    ("flag that begins like another", "README.md", "`--vram-max`\n", "README.md:1: --vram-max occurs in no source"),
)


def self_test():
    failures = []
    for what, name, text, expected in (("nothing", "", "", None),) + PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in {**CLEAN, **({name: text} if name else {})}.items():
                target = pathlib.Path(folder) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, encoding="utf-8")
            found, _ = violations(folder)
        if expected is None and found:
            failures.append(f"clean documents are reported: {found}")
        if expected is not None and [line for line in found if line.startswith(expected)] != found[:1]:
            failures.append(f"{what}: expected only '{expected}...', found {found}")
        if expected is not None and not found:
            failures.append(f"{what}: not found")
    for line in failures:
        print(f"check_docs self-test: {line}", file=sys.stderr)
    print(f"check_docs self-test: {len(PLANTED) + 1} cases, {len(failures)} failed")
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    found, documents = violations(arguments.root)
    for line in found:
        print(line, file=sys.stderr)
    print(f"check_docs: {len(documents)} documents, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
