// The seed corpus of fuzz_gguf, made from code: tests/fuzz/corpus_gguf/ holds these bytes, one file per seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::testing {

struct GgufSeed {
  std::string name;  // file name; "good_" seeds are accepted, "bad_" seeds are refused
  std::vector<std::uint8_t> bytes;
};

std::vector<GgufSeed> gguf_seeds();

}  // namespace tandem::testing
