// Shared by the GGUF suites: a small correct file, and the judgement of a refusal.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "placement/check.h"
#include "runtime/gguf.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {

// Three keys and three tensors of 96, 36 and 24 bytes: offsets 0, 96, 160.
inline GgufBuilder small_file() {
  GgufBuilder builder;
  builder.add("general.architecture", "qwen4exp");
  builder.add("general.quantization_version", std::uint32_t{2});
  builder.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "bc"});
  builder.tensor("first.weight", std::vector<float>(24, 1.5F), {8, 3});
  builder.tensor("second.weight", DType::Q4_0, {64}, random_weights(DType::Q4_0, 64, 1));
  builder.tensor("third.weight", std::vector<float>{1, 2, 3, 4, 5, 6});
  return builder;
}

// The message of the InputError that `act` throws; empty, and a failure, when it throws none.
inline std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

// A refusal is one line that names the file once, first, and says what was expected, what was found and how to fix it,
// and contains `words` besides.
inline void expect_refusal(const std::string& message, const std::string& file, const std::vector<std::string>& words) {
  EXPECT_EQ(message.rfind(file), 0U) << message;
  std::vector<std::string> all = {": expected ", ", found ", ". Fix: "};
  all.insert(all.end(), words.begin(), words.end());
  for (const std::string& word : all) {
    EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  }
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

}  // namespace tandem::testing
