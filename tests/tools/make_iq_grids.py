#!/usr/bin/env python3
"""Writes runtime/iq_grids.cpp from a text dump of the IQ lattice tables.

    python3 tests/tools/make_iq_grids.py iq_grids.txt > runtime/iq_grids.cpp

Input: sections "NAME ENTRIES BYTES sha256=HEX", each followed by its entries as hex tokens (element 0 first), and
comment lines starting with '#'. Every section is checked against its hash. Output: one 16-bit word per entry, which
holds an index into the table's value set per element (2 bits each for three values, 3 bits each for eight),
element 0 in the lowest bits. runtime/iq_grids.cpp expands the words at compile time.
"""
import hashlib
import sys

# section, C++ name, bits per index, value set
TABLES = [
    ("iq2xxs_grid", "Iq2Xxs", 2, [8, 25, 43]),
    ("iq2xs_grid", "Iq2Xs", 2, [8, 25, 43]),
    ("iq2s_grid", "Iq2S", 2, [8, 25, 43]),
    ("iq3xxs_grid", "Iq3Xxs", 3, [4, 12, 20, 28, 36, 44, 52, 62]),
    ("iq3s_grid", "Iq3S", 3, [1, 3, 5, 7, 9, 11, 13, 15]),
    ("iq1s_grid", "Iq1S", 2, [255, 0, 1]),
]

HEADER = """// Lattice tables of the IQ block formats, packed; written by tests/tools/make_iq_grids.py.
// The values are facts of the GGUF format, chosen there by a search and not computable. They are taken from ggml
// (MIT licence, copyright (c) 2023-2026 the ggml authors; see NOTICE).
#include "runtime/iq_grids.h"

namespace tandem {
namespace {

// Entry e of the result holds, in memory order, values[(words[e] >> (bits * j)) & mask] for j = 0, 1, ...
template <typename Entry, std::size_t count, std::size_t value_count>
constexpr IqGrid<Entry, count> expand(const std::uint16_t (&words)[count], const std::uint8_t (&values)[value_count]) {
  constexpr unsigned bits = value_count == 8 ? 3 : 2;
  IqGrid<Entry, count> grid{};
  for (std::size_t e = 0; e < count; ++e) {
    for (std::size_t j = 0; j < sizeof(Entry); ++j) {
      const std::size_t index = (static_cast<std::size_t>(words[e]) >> (bits * j)) & ((1U << bits) - 1);
      grid.entry[e] |= static_cast<Entry>(values[index]) << (8 * j);
    }
  }
  return grid;
}

// clang-format off
"""


def read_sections(path):
    sections, current = {}, None
    for line in open(path, encoding="ascii"):
        fields = line.split()
        if not fields or fields[0] == "#":
            continue
        if fields[0].startswith("iq"):
            current = {"count": int(fields[1]), "bytes": int(fields[2]), "sha": fields[3].split("=")[1], "rows": []}
            sections[fields[0]] = current
        else:
            current["rows"] += [bytes.fromhex(token) for token in fields]
    for name, section in sections.items():
        if len(section["rows"]) != section["count"]:
            sys.exit(f"{name}: expected {section['count']} entries, found {len(section['rows'])}")
        if hashlib.sha256(b"".join(section["rows"])).hexdigest() != section["sha"]:
            sys.exit(f"{name}: the sha256 of the entries does not match")
    return sections


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sections = read_sections(sys.argv[1])
    out = [HEADER]
    for section_name, name, bits, values in TABLES:
        rows = sections[section_name]["rows"]
        words = [sum(values.index(byte) << (bits * j) for j, byte in enumerate(row)) for row in rows]
        out.append(f"constexpr std::uint16_t k{name}Words[{len(words)}] = {{\n")
        for start in range(0, len(words), 16):
            out.append("    " + ", ".join(f"0x{word:04x}" for word in words[start:start + 16]) + ",\n")
        out.append("};\n")
    out.append("// clang-format on\n\n")
    out.append("constexpr std::uint8_t kThree[3] = {8, 25, 43};\n")
    out.append("constexpr std::uint8_t kEight[8] = {4, 12, 20, 28, 36, 44, 52, 62};\n")
    out.append("constexpr std::uint8_t kOdd[8] = {1, 3, 5, 7, 9, 11, 13, 15};\n")
    out.append("constexpr std::uint8_t kTernary[3] = {0xFF, 0, 1};  // -1, 0, 1 as int8\n\n}  // namespace\n\n")
    sets = {"Iq2Xxs": "kThree", "Iq2Xs": "kThree", "Iq2S": "kThree", "Iq3Xxs": "kEight", "Iq3S": "kOdd",
            "Iq1S": "kTernary"}
    for section_name, name, bits, values in TABLES:
        entry = "std::uint64_t" if bits == 2 else "std::uint32_t"
        count = sections[section_name]["count"]
        out.append(f"constexpr IqGrid<{entry}, {count}> k{name}Grid = expand<{entry}>(k{name}Words, {sets[name]});\n")
    out.append("\n}  // namespace tandem\n")
    sys.stdout.write("".join(out))


if __name__ == "__main__":
    main()
