// What a file may say about its tokenizer: the rules of a little vocabulary, and one broken table at a time.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "placement/check.h"
#include "runtime/gguf.h"
#include "runtime/tokenizer.h"
#include "tests/gguf_builder.h"

namespace tandem {
namespace {

// The byte-level alphabet, from the file that other encoders agree on: its first 256 tokens, in no order of bytes.
const std::vector<std::string>& alphabet_of_nano() {
  static const std::vector<std::string> alphabet = [] {
    const Gguf gguf = Gguf::open(TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf");
    const auto tokens = gguf.strings("tokenizer.ggml.tokens");
    return std::vector<std::string>(tokens->begin(), tokens->begin() + 256);
  }();
  return alphabet;
}

// A complete little tokenizer that single tests break in one place.
struct SmallVocabulary {
  std::vector<std::string> tokens, merges{"a b", "ab c", "c d"};
  std::vector<std::int64_t> types;
  std::string model = "gpt2", pre = "qwen35";
  std::optional<std::int64_t> eos = 258;

  SmallVocabulary() {
    for (std::size_t i = 0; i < 256; ++i) tokens.push_back(alphabet_of_nano()[i]);
    types.assign(256, 1);
    add("ab", 1);
    add("abc", 1);
    add("cd", 1);
    add("<x", 4);
    add("<x y>", 4);
    add("<x y>z", 3);
    add("abc", 4);
    add("[PAD0]", 5);
    add("[PAD0]", 5);
    add("not in alphabet: é ", 1);
  }

  void add(const std::string& text, std::int64_t type) {
    tokens.push_back(text);
    types.push_back(type);
  }

  Tokenizer load() const {
    TokenizerData data;
    data.source = "small.gguf";
    data.model = model;
    data.pre = pre;
    data.tokens.assign(tokens.begin(), tokens.end());
    data.types = types;
    data.merges.assign(merges.begin(), merges.end());
    data.eos = eos;
    return Tokenizer::from_data(data);
  }

  std::string error() const {
    try {
      load();
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }
};

TEST(Tokenizer, SpecialTokensAreMatchedLongestFirst) {
  const Tokenizer tokenizer = SmallVocabulary().load();
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(tokenizer.encode("<x", true), Ids{259});
  EXPECT_EQ(tokenizer.encode("<x y>", true), Ids{260});
  EXPECT_EQ(tokenizer.encode("<x y>z<x<x y>", true), (Ids{261, 259, 260}));
  const TokenId space = tokenizer.encode(" ", false)[0];
  EXPECT_EQ(tokenizer.encode("<x ", true), (Ids{259, space}));
  EXPECT_EQ(tokenizer.bytes(260), "<x y>");
  EXPECT_EQ(tokenizer.bytes(265), "not in alphabet: é ");
}

TEST(Tokenizer, ASpecialTokenMaySpellAWord) {
  const Tokenizer tokenizer = SmallVocabulary().load();
  EXPECT_EQ(tokenizer.encode("abc", false), std::vector<TokenId>{257});
  EXPECT_EQ(tokenizer.encode("abc", true), std::vector<TokenId>{262});
  EXPECT_EQ(*tokenizer.find_special("abc"), 262);
}

TEST(Tokenizer, LowerRanksMergeFirst) {
  const Tokenizer tokenizer = SmallVocabulary().load();
  EXPECT_EQ(tokenizer.encode("abcd", false), (std::vector<TokenId>{257, tokenizer.encode("d", false)[0]}));
  SmallVocabulary other;
  other.merges = {"c d", "a b", "ab c"};
  EXPECT_EQ(other.load().encode("abcd", false), (std::vector<TokenId>{256, 258}));
  other.merges = {"a b", "ab c", "c d", "a b"};  // listed twice: the first rank counts
  EXPECT_EQ(other.load().encode("abcd", false)[0], 257);
}

TEST(Tokenizer, StopsAtTheFilesEndTokenToo) {
  const Tokenizer tokenizer = SmallVocabulary().load();
  EXPECT_EQ(tokenizer.stop_ids().size(), 1u);
  EXPECT_TRUE(tokenizer.is_stop(258));
  SmallVocabulary none;
  none.eos = std::nullopt;
  EXPECT_TRUE(none.load().stop_ids().empty());
}

void expect_message(const SmallVocabulary& vocabulary, const std::vector<std::string>& parts) {
  const std::string message = vocabulary.error();
  EXPECT_EQ(message.rfind("small.gguf: tokenizer.ggml.", 0), 0u) << message;
  EXPECT_NE(message.find("Fix: "), std::string::npos) << message;
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Tokenizer, RefusesOtherTokenizers) {
  SmallVocabulary model;
  model.model = "llama";
  expect_message(model, {"tokenizer.ggml.model: expected gpt2, found llama"});
  SmallVocabulary pre;
  pre.pre = "qwen2";
  expect_message(pre, {"tokenizer.ggml.pre: expected qwen35, found qwen2"});
}

TEST(Tokenizer, RefusesInconsistentTables) {
  SmallVocabulary empty;
  empty.tokens.clear();
  expect_message(empty, {"tokens: expected 1 to 2147483647 tokens, found 0"});
  SmallVocabulary types;
  types.types.pop_back();
  expect_message(types, {"token_type: expected 266 entries", "found 265"});
  SmallVocabulary eos;
  eos.eos = 266;
  expect_message(eos, {"eos_token_id: expected 0 to 265, found 266"});
  eos.eos = -1;
  expect_message(eos, {"found -1"});
  SmallVocabulary byte;
  byte.types[65] = 5;
  expect_message(byte, {"expected a normal token for each of the 256 bytes, found none for 0x62"});
  SmallVocabulary twin;
  twin.add("cd", 1);
  expect_message(twin, {"tokens[266]", "found \"cd\" as in token 258"});
  SmallVocabulary special_twin;
  special_twin.add("<x", 3);
  expect_message(special_twin, {"tokens[266]", "as in token 259"});
  SmallVocabulary nameless;
  nameless.add("", 3);
  expect_message(nameless, {"tokens[266]", "found nothing"});
}

TEST(Tokenizer, RefusesImpossibleMerges) {
  for (const char* merge : {"ab", " ab", "ab ", "a b c", "", " "}) {
    SmallVocabulary form;
    form.merges.emplace_back(merge);
    expect_message(form, {"merges[3]: expected two tokens with one space between", std::string("\"") + merge + "\""});
  }
  SmallVocabulary left;
  left.merges.emplace_back("xyz c");
  expect_message(left, {"merges[3]", "\"xyz\" is none"});
  SmallVocabulary right;
  right.merges.emplace_back("c xyz");
  expect_message(right, {"merges[3]", "\"xyz\" is none"});
  SmallVocabulary result;
  result.merges.emplace_back("b c");
  expect_message(result, {"merges[3]", "\"bc\" is none"});
  SmallVocabulary special;  // no merge may make a special token
  special.merges.emplace_back("< x");
  expect_message(special, {"merges[3]", "\"<x\" is none"});
}

testing::GgufBuilder small_file() {
  const SmallVocabulary small;
  testing::GgufBuilder file;
  file.add("general.architecture", "qwen4exp").add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "qwen35");
  file.add("tokenizer.ggml.tokens", small.tokens).add("tokenizer.ggml.merges", small.merges);
  file.add("tokenizer.ggml.token_type", std::vector<std::int32_t>(small.types.begin(), small.types.end()));
  file.add("tokenizer.ggml.eos_token_id", std::uint32_t{258});
  file.tensor("token_embd.weight", DType::F32, {1, 1});
  return file;
}

std::string error_of(const testing::GgufBuilder& file) {
  const auto image = file.build();
  const Gguf gguf = Gguf::parse(image, "small.gguf");
  try {
    Tokenizer::from_gguf(gguf);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Tokenizer, ReadsAFile) {
  const auto image = small_file().build();
  const Tokenizer tokenizer = Tokenizer::from_gguf(Gguf::parse(image));
  EXPECT_EQ(tokenizer.size(), 266u);
  EXPECT_EQ(tokenizer.encode("abcd<x", true), SmallVocabulary().load().encode("abcd<x", true));
  EXPECT_TRUE(tokenizer.is_stop(258));
  // The end token is optional, and other tools write other integer types.
  const SmallVocabulary small;
  const std::vector<std::uint64_t> types(small.types.begin(), small.types.end());
  const auto other = small_file().remove("tokenizer.ggml.eos_token_id").add("tokenizer.ggml.token_type", types).build();
  EXPECT_TRUE(Tokenizer::from_gguf(Gguf::parse(other)).stop_ids().empty());
}

TEST(Tokenizer, NamesWhatAFileLacks) {
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                          "tokenizer.ggml.merges", "tokenizer.ggml.token_type"}) {
    const std::string message = error_of(small_file().remove(key));
    EXPECT_NE(message.find("small.gguf"), std::string::npos) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
    const std::string wrong = error_of(small_file().add(key, std::uint32_t{1}));
    EXPECT_NE(wrong.find(key), std::string::npos) << wrong;
  }
}

}  // namespace
}  // namespace tandem
