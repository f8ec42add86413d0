// The trace file: round trip of random rounds, its size, and every cut and every changed byte noticed.
#include "placement/trace.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <random>

#include "placement/check.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

std::vector<TraceRound> random_rounds(const TraceHeader& header, int n, unsigned seed, int max_rows = 5) {
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  std::vector<TraceRound> rounds;
  for (int i = 0; i < n; ++i) {
    TraceRound round;
    round.phase = pick(0, 1) == 0 ? Phase::kPrefill : Phase::kDecode;
    round.domain = pick(0, 3) == 0 || rounds.empty() ? "d" + std::to_string(pick(0, 3)) : rounds.back().domain;
    for (int b = 0; b < header.banks; ++b) {
      TraceBlock block{b, static_cast<std::uint32_t>(pick(0, max_rows)), {}};
      for (std::size_t k = 0; k < block.rows * static_cast<std::size_t>(header.used); ++k)
        block.ids.push_back(pick(0, header.experts - 1));
      round.blocks.push_back(block);
    }
    round.position = static_cast<std::uint64_t>(pick(0, 3) == 0 ? pick(0, 1 << 30) : pick(0, 300));
    rounds.push_back(round);
  }
  return rounds;
}

// In a folder of this process: ctest runs several tests of one program at once.
std::string path(const std::string& name) {
  static const testing::TemporaryFolder folder;
  return (folder.path() / name).string();
}

void write(const std::string& file, const TraceHeader& header, const std::vector<TraceRound>& rounds) {
  TraceWriter writer(file, header);
  for (const TraceRound& round : rounds) writer.add(round);
  writer.finish();
}

std::vector<TraceRound> read(const std::string& file, TraceHeader* header = nullptr) {
  TraceReader reader(file);
  if (header != nullptr) *header = reader.header();
  std::vector<TraceRound> rounds;
  TraceRound round;
  while (reader.next(round)) rounds.push_back(round);
  EXPECT_FALSE(reader.next(round));
  return rounds;
}

std::string bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string refusal(const std::string& bytes) {
  const std::string file = path("bad");
  std::ofstream(file, std::ios::binary) << bytes;
  try {
    read(file);
  } catch (const InputError& error) {
    const std::string message = error.what();
    return message.starts_with(file + ": ") ? message.substr(file.size() + 2) : message;
  }
  return {};
}

TEST(Trace, KeepsEveryRoute) {
  for (const int experts : {1, 2, 3, 32, 255, 256, 257, 512, 65536}) {
    const TraceHeader header{"a model", 0x123456789abcdef0, 9, experts, std::min(experts, 10)};
    const auto rounds = random_rounds(header, 60, static_cast<unsigned>(experts));
    write(path("round"), header, rounds);
    TraceHeader found;
    EXPECT_EQ(read(path("round"), &found), rounds) << experts;
    EXPECT_EQ(found, header);
  }
}

TEST(Trace, SpansManyChunks) {
  const TraceHeader header{"m", 1, 49, 512, 10};
  const auto rounds = random_rounds(header, 40, 7, 40);
  write(path("chunks"), header, rounds);
  EXPECT_GT(bytes_of(path("chunks")).size(), 4U << 16);
  EXPECT_EQ(read(path("chunks")), rounds);
}

// The bound, for rounds of a single row, where the rest of a record weighs most.
TEST(Trace, TakesAtMostTwentyBytesABankRow) {
  const TraceHeader header{"m", 1, 48, 512, 10};
  auto rounds = random_rounds(header, 500, 3, 0);
  for (TraceRound& round : rounds)
    for (TraceBlock& block : round.blocks) {
      block.rows = 1;
      block.ids.assign(10, 511);
    }
  write(path("size"), header, rounds);
  const double each = static_cast<double>(bytes_of(path("size")).size()) / (500.0 * 48);
  EXPECT_LT(each, 15);
  EXPECT_GT(each, 11.25);  // 90 bits
}

TEST(Trace, AnEmptyTrace) {
  const TraceHeader header{"", 0, 1, 1, 1};
  write(path("empty"), header, {});
  EXPECT_TRUE(read(path("empty")).empty());
}

TEST(Trace, EveryCutAndEveryChangedByteIsNoticed) {
  const TraceHeader header{"nano", 42, 3, 32, 4};
  write(path("whole"), header, random_rounds(header, 6, 1));
  const std::string whole = bytes_of(path("whole"));
  ASSERT_EQ(refusal(whole), "");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    EXPECT_NE(refusal(whole.substr(0, n)), "") << n;
    for (const char bit : {char(1), char(0x40), char(-1)}) {
      std::string changed = whole;
      changed[n] = static_cast<char>(changed[n] ^ bit);
      EXPECT_NE(refusal(changed), "") << n;
    }
  }
  EXPECT_NE(refusal(whole + "x"), "");
}

TEST(Trace, SaysWhatIsWrong) {
  const TraceHeader header{"nano", 42, 3, 32, 4};
  write(path("whole"), header, random_rounds(header, 6, 1));
  const std::string whole = bytes_of(path("whole"));
  EXPECT_EQ(refusal("GGUF and more"),
            "expected a trace (\"TANDEMTR\"), found another kind of file. Fix: record one with `tandem profile "
            "--trace`");
  std::string other = whole;
  other[8] = 9;
  EXPECT_EQ(refusal(other), "expected a trace of version 2, found version 9. Fix: record it again");
  other = whole;
  other[60] ^= 1;
  EXPECT_EQ(refusal(other), fmt::format("expected a whole trace, found a wrong checksum near byte {} (round 0). Fix: "
                                        "record it again, or restore the file",
                                        whole.size() - 20));
  EXPECT_EQ(refusal(whole.substr(0, whole.size() - 20)),
            fmt::format("expected a whole trace, found its end near byte {} (round 6). Fix: record it again, or "
                        "restore the file",
                        whole.size() - 20));
  EXPECT_EQ(refusal(whole + "x"),
            fmt::format("expected a whole trace, found more bytes after its end near byte {} (round 6). Fix: record it "
                        "again, or restore the file",
                        whole.size()));
  EXPECT_THROW(TraceReader(path("none")), InputError);
  EXPECT_THROW(TraceReader(::testing::TempDir()), InputError);
}

// Whole chunks missing, with an end whose checksum is right.
TEST(Trace, TheNumberOfRoundsIsChecked) {
  const TraceHeader header{"nano", 42, 3, 32, 4};
  write(path("whole"), header, random_rounds(header, 6, 1));
  std::string bytes = bytes_of(path("whole"));
  const std::size_t end = bytes.size() - 20;
  ASSERT_EQ(bytes[end + 4], 6);
  bytes[end + 4] = 7;
  const std::uint64_t sum = XXH3_64bits(bytes.data() + end, 12);
  std::memcpy(bytes.data() + end + 12, &sum, 8);
  EXPECT_NE(refusal(bytes).find("found another number of rounds than its end says"), std::string::npos);
}

// A position that no sequence has, in a chunk whose checksum is right.
TEST(Trace, PositionsAreChecked) {
  const TraceHeader header{"nano", 42, 1, 2, 1};
  TraceRound round{Phase::kDecode, "x", {}, (std::uint64_t{1} << 32) - 1};
  write(path("whole"), header, {round});
  EXPECT_EQ(read(path("whole")), std::vector{round});
  std::string bytes = bytes_of(path("whole"));
  const std::size_t last = bytes.find("\xff\xff\xff\xff\x0f");  // of the varint
  ASSERT_NE(last, std::string::npos);
  bytes[last + 4] = 0x1f;
  const std::size_t body = last - 4, end = bytes.size() - 20;  // a domain of one letter and a tag are before it
  const std::uint64_t sum = XXH3_64bits(bytes.data() + body, end - 8 - body);
  std::memcpy(bytes.data() + end - 8, &sum, 8);
  EXPECT_NE(refusal(bytes).find("found a position out of range"), std::string::npos) << refusal(bytes);
}

TEST(Trace, AppearsOnlyWhenFinished) {
  const std::string file = path("unfinished");
  std::remove(file.c_str());
  {
    TraceWriter writer(file, {"m", 1, 1, 4, 1});
    writer.add({Phase::kDecode, "x", {{0, 1, {3}}}});
    EXPECT_EQ(writer.rounds(), 1U);
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace tandem
