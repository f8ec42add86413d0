// Checked against: the ids of shared encoders (golden/tokenizer.json), another regular expression engine
// (golden/pretokenizer.json), merging written down naively here, and round trips.
#include "runtime/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "runtime/gguf.h"
#include "runtime/pretokenizer.h"

namespace tandem {
namespace {

// Time limits: 2 s for a megabyte, 1 s for loading. Without optimisation, and under sanitizers, the texts are shorter.
#ifdef NDEBUG
constexpr std::size_t kLongText = 1 << 20;
constexpr double kSecondsToEncode = 2, kSecondsToLoad = 1;
#else
constexpr std::size_t kLongText = 1 << 16;
constexpr double kSecondsToEncode = 10, kSecondsToLoad = 30;
#endif

const std::string kNano = TANDEM_SOURCE_DIR "/models/flash-next-nano-q4.gguf";

const Gguf& nano_file() {
  static const Gguf gguf = Gguf::open(kNano);
  return gguf;
}

const Tokenizer& nano() {
  static const Tokenizer tokenizer = Tokenizer::from_gguf(nano_file());
  return tokenizer;
}

nlohmann::json golden(const std::string& name) {
  std::ifstream file(TANDEM_SOURCE_DIR "/tests/golden/" + name);
  return nlohmann::json::parse(file);
}

std::vector<std::string> special_texts(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < tokenizer.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (tokenizer.is_special(id)) texts.emplace_back(tokenizer.bytes(id));
  }
  return texts;
}

bool has_special(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return std::any_of(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_special(id); });
}

std::string random_bytes(std::mt19937& random, std::size_t length) {
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::string random_choice(std::mt19937& random, const std::vector<std::string>& parts, std::size_t length) {
  std::string text;
  while (text.size() < length) text += parts[random() % parts.size()];
  return text;
}

TEST(Tokenizer, EncodesTheGoldenCases) {
  const auto cases = golden("tokenizer.json");
  ASSERT_EQ(cases.size(), 106u);
  for (const auto& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(nano().encode(text, c["parse_special"]), c["ids"].get<std::vector<TokenId>>()) << text;
    EXPECT_EQ(nano().decode(c["ids"].get<std::vector<TokenId>>()), text);
  }
}

TEST(Pretokenizer, CutsAsAnotherEngineDoes) {
  const Pretokenizer pretokenizer;
  const auto cases = golden("pretokenizer.json");
  ASSERT_EQ(cases.size(), 1200u);
  for (const auto& c : cases) {
    const auto expected = c.get<std::vector<std::string>>();
    std::string text;
    for (const std::string& piece : expected) text += piece;
    std::vector<std::string> found;
    pretokenizer.split(text, [&](std::string_view piece) { found.emplace_back(piece); });
    EXPECT_EQ(found, expected) << c;
  }
}

TEST(Pretokenizer, CutsOutBytesThatAreNoUtf8) {
  const Pretokenizer pretokenizer;
  const auto split = [&](std::string_view text) {
    std::vector<std::string> pieces;
    pretokenizer.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(split("caf\xC3 au"), (Pieces{"caf", "\xC3", " au"}));
  EXPECT_EQ(split("\xFF\xFE"), (Pieces{"\xFF", "\xFE"}));
  EXPECT_EQ(split("a  \xE2\x82z"), (Pieces{"a", "  ", "\xE2", "\x82", "z"}));
  EXPECT_EQ(split("\xED\xA0\x80"), (Pieces{"\xED", "\xA0", "\x80"}));
  EXPECT_EQ(split(""), Pieces{});
}

// Merging as it is defined, on texts: join the leftmost pair of the lowest rank, look everything up again.
class NaiveBpe {
 public:
  explicit NaiveBpe(const std::vector<std::string>& merges) {
    for (const std::string& merge : merges) {
      const std::size_t space = merge.find(' ');
      ranks_.emplace(std::pair(merge.substr(0, space), merge.substr(space + 1)), ranks_.size());
    }
  }

  std::vector<std::string> encode(const std::string& piece) const {
    std::vector<std::string> parts;
    for (const char c : piece) parts.emplace_back(1, c);
    while (true) {
      auto best = ranks_.end();
      std::size_t best_at = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto found = ranks_.find({parts[i], parts[i + 1]});
        if (found != ranks_.end() && (best == ranks_.end() || found->second < best->second)) {
          best = found;
          best_at = i;
        }
      }
      if (best == ranks_.end()) return parts;
      parts[best_at] += parts[best_at + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
    }
  }

 private:
  std::map<std::pair<std::string, std::string>, std::size_t> ranks_;
};

TEST(Tokenizer, MergesAsDefinedAtEveryLength) {
  std::vector<std::string> merges;
  const auto file_merges = nano_file().strings("tokenizer.ggml.merges");
  for (const std::string_view merge : *file_merges) merges.emplace_back(merge);
  const NaiveBpe naive(merges);
  std::mt19937 random(11);
  const std::vector<std::string> words{"the", "ing",  "and",  "a", "b",  "er", "tion",
                                       "z",   "over", "aaaa", "S", "re", "eee"};
  for (std::size_t length = 1; length <= 150; ++length) {
    const std::string text = random_choice(random, words, length);
    std::vector<std::string> found;
    for (const TokenId id : nano().encode(text, false)) found.emplace_back(nano().bytes(id));
    ASSERT_EQ(found, naive.encode(text)) << text;
  }
}

TEST(Tokenizer, RepeatedWordsGiveTheSameTokens) {
  std::mt19937 random(12);
  const std::vector<std::string> words{" the", " The", " then",  " 7",   "\n", " été",
                                       ", ",   "\xFF", " naïve", " x_y", " ö"};
  const std::string text = random_choice(random, words, 60000);
  std::vector<TokenId> expected;
  const Pretokenizer pretokenizer;
  pretokenizer.split(text, [&](std::string_view piece) {
    for (const TokenId id : nano().encode(piece, false)) expected.push_back(id);
  });
  EXPECT_EQ(nano().encode(text, false), expected);
}

TEST(Tokenizer, AnyBytesComeBack) {
  std::mt19937 random(13);
  std::vector<std::string> parts = special_texts(nano());
  for (const char* part : {"a",    " ",   "\n", "é",  "e\u0301", "漢字",   "🙂",   "\xF0\x9F", "\xE2", "\x80", "\xFF",
                           "\x01", "'ll", "12", "  ", "\r\n",    "\u180e", "\ufeff", "<|im_",    "|>",   "<"}) {
    parts.emplace_back(part);
  }
  parts.emplace_back(1, '\0');
  for (int round = 0; round < 1500; ++round) {
    const std::size_t length = random() % 80;
    const std::string text = round % 2 == 0 ? random_bytes(random, length) : random_choice(random, parts, length);
    for (const bool parse_special : {false, true}) {
      const auto ids = nano().encode(text, parse_special);
      ASSERT_EQ(nano().decode(ids), text);
      ASSERT_FALSE(!parse_special && has_special(nano(), ids)) << text;
    }
  }
}

TEST(Tokenizer, FindsSpecialTokensOnlyWhereAllowed) {
  const auto texts = special_texts(nano());
  ASSERT_EQ(texts.size(), 26u);
  for (const std::string& text : texts) {
    const auto id = nano().find_special(text);
    ASSERT_TRUE(id.has_value()) << text;
    EXPECT_EQ(nano().encode(text, true), std::vector<TokenId>{*id});
    EXPECT_EQ(nano().bytes(*id), text);
    const auto plain = nano().encode(text, false);
    EXPECT_FALSE(has_special(nano(), plain)) << text;
    EXPECT_EQ(nano().decode(plain), text);
    // Next to text: the text is encoded as if it stood alone.
    std::vector<TokenId> expected = nano().encode("Hi, ", false);
    expected.push_back(*id);
    for (const TokenId after : nano().encode("\n\nyou", false)) expected.push_back(after);
    expected.push_back(*id);
    EXPECT_EQ(nano().encode("Hi, " + text + "\n\nyou" + text, true), expected) << text;
    EXPECT_FALSE(has_special(nano(), nano().encode(text.substr(0, text.size() - 1) + " " + text.substr(1), true)));
  }
  EXPECT_FALSE(nano().find_special("<|im_start"));
  EXPECT_FALSE(nano().find_special("<|im_start|>x"));
  EXPECT_FALSE(nano().find_special("the"));
  EXPECT_FALSE(nano().find_special(""));
}

TEST(Tokenizer, TextInPartsIsOneText) {
  const std::vector<std::string> parts{"<think>", "</think>", " a", ".",    "\n",   "\n\n",
                                       "word",    "  ",       "é",  "\xE2", "<|im", "_end|>"};
  std::mt19937 random(14);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts;
    std::string whole;
    for (int i = 0; i < 8; ++i) texts.push_back(parts[random() % parts.size()]);
    for (const std::string& text : texts) whole += text;
    std::vector<TextSpan> spans;
    for (const std::string& text : texts)
      spans.push_back({text, text == "<think>" || text == "</think>" || text == "."});
    // "<|im" and "_end|>" meet now and then and are no special token, neither across parts nor in a part that forbids
    // it.
    std::vector<TokenId> expected;
    std::string plain;
    for (const TextSpan& span : spans) {
      const auto id = nano().find_special(span.text);
      if (id) {
        nano().encode_append(plain, false, expected);
        plain.clear();
        expected.push_back(*id);
      } else {
        plain += span.text;
      }
    }
    nano().encode_append(plain, false, expected);
    std::vector<TokenId> found;
    nano().encode_append(spans, found);
    ASSERT_EQ(found, expected) << whole;
  }
  const std::vector<TextSpan> split{{"<|im_", true}, {"end|>", true}};
  std::vector<TokenId> ids;
  nano().encode_append(split, ids);
  EXPECT_FALSE(has_special(nano(), ids));
  const std::vector<TextSpan> forbidden{{"<think>", true}, {"<|im_end|>", false}, {"<|im_end|>", true}};
  ids.clear();
  nano().encode_append(forbidden, ids);
  EXPECT_EQ(ids.front(), *nano().find_special("<think>"));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *nano().find_special("<|im_end|>")), 1);
}

TEST(Tokenizer, StopsByName) {
  const TokenId end = *nano().find_special("<|im_end|>");
  const TokenId text_end = *nano().find_special("<|endoftext|>");
  EXPECT_EQ(std::vector<TokenId>(nano().stop_ids().begin(), nano().stop_ids().end()),
            (std::vector<TokenId>{end, text_end}));
  EXPECT_TRUE(nano().is_stop(end));
  EXPECT_TRUE(nano().is_stop(text_end));
  EXPECT_FALSE(nano().is_stop(*nano().find_special("<|im_start|>")));
  EXPECT_FALSE(nano().is_stop(0));
}

TEST(Tokenizer, EncodesInManyThreads) {
  std::mt19937 random(15);
  const std::string text = random_choice(random, {" some", " words", " and", "\n", "<|im_end|>", "été ", "12"}, 40000);
  const auto expected = nano().encode(text, true);
  std::vector<std::vector<TokenId>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&ids, &text] { ids = nano().encode(text, true); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

// Of this process, so that a busy machine fails no test.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  const double begin = processor_seconds();
  const auto ids = tokenizer.encode(text, true);
  const double seconds = processor_seconds() - begin;
  EXPECT_EQ(tokenizer.decode(ids), text);
  return seconds;
}

std::string ordinary_text(std::size_t length) {
  std::mt19937 random(16);
  std::vector<std::string> words{". ", ",\n", "\n\n", " 1987", " (", ")", "; ", " été", " 漢字"};
  for (int i = 0; i < 5000; ++i) {
    std::string word = " ";
    for (std::size_t n = 1 + random() % 9; n > 0; --n)
      word += "etaoinshrdlucmfwypvbgkjqxz"[random() % 8 + random() % 19];
    words.push_back(word);
  }
  return random_choice(random, words, length);
}

// Of the full length each: ordinary text, and runs that are hard for a regular expression or for merging.
std::vector<std::pair<std::string, std::string>> long_texts() {
  std::mt19937 random(17);
  std::string letters(kLongText, 'a');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  std::vector<std::pair<std::string, std::string>> texts{{"ordinary", ordinary_text(kLongText)},
                                                         {"random letters", letters},
                                                         {"random bytes", random_bytes(random, kLongText)}};
  for (const std::string part : {"a", " ", "\n", "\t", " \n", "!", "\xFF", "\xCC\x81", "<", "<|im_end|", "<|im_end|>",
                                 "'", "the", "\xE2\x80\x83", "7", " x  "}) {
    texts.emplace_back("repeated \"" + part + "\"", random_choice(random, {part}, kLongText));
  }
  texts.emplace_back("spaces and a word", std::string(kLongText, ' ') + "x");
  texts.emplace_back("line feed and spaces", "\n" + std::string(kLongText, ' ') + "x");
  return texts;
}

TEST(Tokenizer, EncodesLongTextsOfAnyKindQuickly) {
  for (const auto& [name, text] : long_texts()) {
    const double seconds = seconds_to_encode(nano(), text);
    EXPECT_LT(seconds, kSecondsToEncode) << name;
  }
}

// A vocabulary of the size of the real one: 248,320 tokens, 247,587 merges; every token joins two earlier ones.
struct LargeVocabulary {
  std::vector<std::string> tokens, merges;
  TokenizerData data;

  LargeVocabulary() {
    const auto nano_tokens = nano_file().strings("tokenizer.ggml.tokens");
    std::map<std::string, bool> known;
    for (std::size_t i = 0; i < 256; ++i) tokens.emplace_back((*nano_tokens)[i]);
    std::mt19937 random(18);
    while (merges.size() < 247587) {
      const std::string& left = tokens[random() % std::min<std::size_t>(tokens.size(), 20000)];
      const std::string& right = tokens[random() % std::min<std::size_t>(tokens.size(), 20000)];
      std::string joined = left + right;
      if (joined.size() > 40 || !known.emplace(joined, true).second) continue;
      merges.push_back(left + " " + right);
      tokens.push_back(std::move(joined));
    }
    data.types.assign(tokens.size(), 1);
    for (const char* special : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
      tokens.emplace_back(special);
      data.types.push_back(3);
    }
    while (tokens.size() < 248320) {
      tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
      data.types.push_back(5);
    }
    data.source = "large";
    data.model = "gpt2";
    data.pre = "qwen35";
    data.tokens.assign(tokens.begin(), tokens.end());
    data.merges.assign(merges.begin(), merges.end());
  }
};

TEST(Tokenizer, LoadsTheRealSizeQuickly) {
  const LargeVocabulary vocabulary;
  const double begin = processor_seconds();
  const Tokenizer tokenizer = Tokenizer::from_data(vocabulary.data);
  EXPECT_LT(processor_seconds() - begin, kSecondsToLoad);
  EXPECT_EQ(tokenizer.size(), 248320u);
  EXPECT_EQ(tokenizer.bytes(248319), "[PAD248319]");
  EXPECT_EQ(*tokenizer.find_special("<|im_end|>"), 247845);
  std::mt19937 random(19);
  std::string letters(kLongText, 'a');
  for (char& c : letters) c = static_cast<char>('a' + random() % 26);
  EXPECT_LT(seconds_to_encode(tokenizer, letters), kSecondsToEncode);
  EXPECT_LT(seconds_to_encode(tokenizer, ordinary_text(kLongText)), kSecondsToEncode);
}

}  // namespace
}  // namespace tandem
