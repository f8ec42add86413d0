// Every file of the fuzzer's seed corpus goes through the fuzzer's function, and so do a few thousand mutations of
// each; what counts as misbehaviour is written in tests/fuzz/gguf_target.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/fuzz/gguf_seeds.h"
#include "tests/fuzz/gguf_target.h"

namespace tandem::testing {
namespace {

using Bytes = std::vector<std::uint8_t>;

const std::filesystem::path kCorpus = TANDEM_SOURCE_DIR "/tests/fuzz/corpus_gguf";

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

TEST(GgufCorpus, FilesAreTheSeeds) {
  std::set<std::string> names;
  for (const GgufSeed& seed : gguf_seeds()) {
    names.insert(seed.name);
    EXPECT_TRUE(read_file(kCorpus / seed.name) == seed.bytes)
        << seed.name << " is out of date: run make_gguf_seeds tests/fuzz/corpus_gguf";
  }
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) files.insert(entry.path().filename().string());
  // The corpus may hold more than the seeds, such as a crash once found.
  EXPECT_TRUE(std::includes(files.begin(), files.end(), names.begin(), names.end()));
}

TEST(GgufCorpus, GoodFilesAreAcceptedAndBadOnesRefused) {
  std::size_t good = 0, bad = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kCorpus)) {
    const std::string name = entry.path().filename().string();
    const bool expect_good = name.starts_with("good_");
    ASSERT_TRUE(expect_good || name.starts_with("bad_")) << name;
    EXPECT_EQ(try_gguf(read_file(entry.path())), expect_good) << name;
    ++(expect_good ? good : bad);
  }
  EXPECT_GE(good, 6U);
  EXPECT_GE(bad, 8U);
}

// Flipped bits, extreme bytes and words, cuts and repeats; always the same ones.
TEST(GgufCorpus, MutationsDoNotMisbehave) {
  std::uint32_t state = 1;
  const auto next = [&state] { return (state = state * 1664525 + 1013904223) >> 8; };
  std::size_t accepted = 0, refused = 0;
  for (const GgufSeed& seed : gguf_seeds()) {
    for (int round = 0; round < 2000; ++round) {
      Bytes bytes = seed.bytes;
      for (std::uint32_t change = 0; change <= next() % 3; ++change) {
        const std::size_t limit = std::min<std::size_t>(bytes.size(), 1200);  // the directory, not the data
        if (limit < 16) break;
        const std::size_t at = next() % (limit - 8);
        switch (next() % 5) {
          case 0:
            bytes[at] = static_cast<std::uint8_t>(bytes[at] ^ (1U << (next() % 8)));
            break;
          case 1:
            bytes[at] = static_cast<std::uint8_t>(next());
            break;
          case 2:
            std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), 8,
                        static_cast<std::uint8_t>(next() % 2 * 255));
            break;
          case 3:
            bytes.resize(at + 8);
            break;
          default:
            std::copy_n(seed.bytes.begin() + static_cast<std::ptrdiff_t>(next() % (limit - 8)), 8,
                        bytes.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      ++(try_gguf(bytes) ? accepted : refused);
    }
  }
  EXPECT_GT(accepted, 1000U);
  EXPECT_GT(refused, 10000U);
}

}  // namespace
}  // namespace tandem::testing
