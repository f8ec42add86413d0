// What the fuzzer, and the corpus test, do with one input.
#pragma once

#include <cstdint>
#include <span>

namespace tandem::testing {

// An input is one of:
//   "NAME" + text                                  a file name for parse_shard_name
//   "SHRD" + u8 n + n x u32 size + n images        a set of n shards for Gguf::parse_set
//   anything else                                  one image for Gguf::parse
// Opens it and uses everything that a caller may use without further checks: all metadata readers, the first and last
// byte and the first row of every tensor, find_bad_values. Returns false when the input was refused with InputError;
// every other misbehaviour ends the program.
bool try_gguf(std::span<const std::uint8_t> input);

}  // namespace tandem::testing
