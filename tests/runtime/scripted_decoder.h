// A model that writes a fixed list of tokens after any prompt, for tests of the generation loop.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/generate.h"

namespace tandem::testing {

// Token id i has the bytes kTexts[i].
inline const std::vector<std::string> kTexts{"<end>", "Hel", "lo", " wor", "ld", "\xE2\x82",
                                             "\xAC",  "!",   "ST", "OP",   "STO"};
inline constexpr TokenId kEnd = 0;

// After an answer that is not the script's beginning (a wrong draft) it says kOffScript with all its might.
class ScriptedDecoder : public Decoder {
 public:
  static constexpr TokenId kOffScript = 6;

  ScriptedDecoder(std::vector<TokenId> script, std::size_t context, std::size_t vocabulary)
      : script_(std::move(script)), context_(context), vocabulary_(vocabulary) {}

  std::span<const TokenId> tokens() const override { return tokens_; }
  std::size_t context() const override { return context_; }
  std::span<const float> logits() const override { return logits_; }
  std::uint64_t misses() const override { return misses_; }

  bool append(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
              const std::function<void(std::size_t)>& progress) override {
    EXPECT_LE(tokens_.size() + tokens.size(), context_);
    EXPECT_TRUE(rows_.empty());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (cancelled && cancelled()) return false;
      tokens_.push_back(tokens[i]);
      if (progress) progress(i + 1);
    }
    if (prompt_ == 0) prompt_ = tokens_.size();
    logits_ = after(tokens_);
    return true;
  }

  void open(std::span<const TokenId> tokens) override {
    EXPECT_TRUE(rows_.empty()) << "a round is open";
    EXPECT_LE(tokens_.size() + tokens.size(), context_);
    EXPECT_LE(tokens.size(), kMaxWindow);
    window_.assign(tokens.begin(), tokens.end());
    std::vector<TokenId> all = tokens_;
    for (const TokenId token : tokens) {
      all.push_back(token);
      rows_.push_back(after(all));
    }
    misses_ += tokens.size();
    widths.push_back(tokens.size());
  }
  std::span<const float> row(std::size_t i) const override { return rows_.at(i); }
  void keep(std::size_t n) override {
    EXPECT_GE(n, 1U);
    EXPECT_LE(n, window_.size());
    tokens_.insert(tokens_.end(), window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(n));
    rows_.clear();
  }
  bool round_open() const { return !rows_.empty(); }

  std::vector<std::size_t> widths;  // of the rounds

 private:
  std::vector<float> after(const std::vector<TokenId>& tokens) const {
    std::vector<float> logits(vocabulary_, 0.0F);
    const std::size_t said = tokens.size() - prompt_;
    bool right = true;
    for (std::size_t i = 0; i < said; ++i) right = right && tokens[prompt_ + i] == at(i);
    logits.at(static_cast<std::size_t>(right ? at(said) : kOffScript)) = 5.0F;
    return logits;
  }
  TokenId at(std::size_t i) const { return script_.at(std::min(i, script_.size() - 1)); }

  std::vector<TokenId> script_, tokens_, window_;
  std::size_t context_, vocabulary_, prompt_ = 0;
  std::uint64_t misses_ = 0;
  std::vector<float> logits_;
  std::vector<std::vector<float>> rows_;
};

}  // namespace tandem::testing
