#include "runtime/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace tandem {
namespace {

using Kind = Utf8Step::Kind;

std::string encode(std::uint32_t c) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(static_cast<std::uint8_t>(value)); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F))};
}

// Every code point: its own encoding is a character, each part of it is incomplete, and a surrogate is invalid.
TEST(Utf8, StepsOverEveryCodePoint) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encode(c);
    const Utf8Step step = utf8_step(text);
    if (c >= 0xD800 && c < 0xE000) {
      ASSERT_EQ(step.kind, Kind::kInvalid) << c;
      ASSERT_EQ(step.length, 1u) << c;
      continue;
    }
    ASSERT_EQ(step.kind, Kind::kCharacter) << c;
    ASSERT_EQ(step.length, text.size()) << c;
    for (std::size_t part = 1; part < text.size(); ++part) {
      const Utf8Step unfinished = utf8_step(std::string_view(text).substr(0, part));
      ASSERT_EQ(unfinished.kind, Kind::kIncomplete) << c;
      ASSERT_EQ(unfinished.length, part) << c;
    }
  }
}

TEST(Utf8, RefusesWhatIsNoEncoding) {
  const auto invalid = [](std::string_view text) {
    const Utf8Step step = utf8_step(text);
    return step.kind == Kind::kInvalid ? std::optional(step.length) : std::nullopt;
  };
  EXPECT_EQ(invalid("\x80"), 1u);
  EXPECT_EQ(invalid("\xC0\x80"), 1u);
  EXPECT_EQ(invalid("\xC1\xBF"), 1u);
  EXPECT_EQ(invalid("\xE0\x9F\xBF"), 1u);
  EXPECT_EQ(invalid("\xF0\x8F\xBF\xBF"), 1u);
  EXPECT_EQ(invalid("\xF4\x90\x80\x80"), 1u);
  EXPECT_EQ(invalid("\xF5\x80\x80\x80"), 1u);
  EXPECT_EQ(invalid("\xFF"), 1u);
  EXPECT_EQ(invalid("\xC3("), 1u);
  EXPECT_EQ(invalid("\xE2\x82("), 2u);
  EXPECT_EQ(invalid("\xF0\x9F\x98("), 3u);
}

TEST(Utf8, FindsTheValidPrefix) {
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string text = std::string(before, 'x') + "é漢🙂";
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
    EXPECT_EQ(valid_utf8_prefix(text + "\xFFyyyyyyyyyy"), text.size());
    EXPECT_EQ(valid_utf8_prefix(text.substr(0, text.size() - 1)), text.size() - 4);
  }
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
}

std::string stream(const std::vector<std::string>& chunks) {
  Utf8Stream stream;
  std::string shown;
  for (const std::string& chunk : chunks) shown += stream.push(chunk);
  return shown + stream.flush();
}

TEST(Utf8Stream, HoldsBackUnfinishedCharacters) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x99"), "");
  EXPECT_EQ(stream.push("\x82"
                        "b\xC3"),
            "🙂b");
  EXPECT_EQ(stream.flush(), "\uFFFD");
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\xA9"), "\uFFFD");
}

// The example of the Unicode standard for the substitution of maximal subparts (chapter 3, table 3-8 and its text).
TEST(Utf8Stream, ReplacesMaximalSubparts) {
  EXPECT_EQ(stream({"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"}),
            "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

TEST(Utf8Stream, DoesNotDependOnTheChunks) {
  std::mt19937 random(7);
  const std::vector<std::string> parts{"a", "é", "漢", "🙂", "\xE2\x82", "\xF0\x9F", "\xFF", "\x80", "\n"};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % parts.size()];
    const std::string whole = stream({text});
    EXPECT_EQ(valid_utf8_prefix(whole), whole.size());
    std::vector<std::string> chunks;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = 1 + random() % 4;
      chunks.push_back(text.substr(at, length));
      at += length;
    }
    EXPECT_EQ(stream(chunks), whole);
  }
}

}  // namespace
}  // namespace tandem
