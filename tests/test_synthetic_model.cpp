// The test models themselves: values of order one in every type, the quantisers, and the tokenizer tables.
#include "tests/synthetic_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model.h"
#include "runtime/tokenizer.h"

namespace tandem::testing {
namespace {

double rms(DType type, const std::vector<std::uint8_t>& bytes, std::size_t n) {
  std::vector<float> values(n);
  dequantize_row(type, bytes.data(), n, values.data());
  double sum = 0.0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum / static_cast<double>(n));
}

// Inputs of order one must give outputs of order one: the root mean square of a matrix is about 1 / sqrt(columns).
TEST(SyntheticModel, MatricesKeepActivationsSane) {
  SyntheticOptions options;
  options.shape.hidden = 256;
  options.shape.layers = 2;  // small, since one model is made per type
  options.shape.is_gdn = {true, false};
  options.shape.mtp_layers = 0;
  options.shape.ple_layer = -1;
  options.shape.experts = 2;
  int tried = 0;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr || info->kind == DTypeKind::kStorage) continue;
    options.type = [&](const tandem::TensorSpec& spec) {
      return spec.form == TensorForm::kMatrix ? info->type : DType::F32;
    };
    GgufBuilder builder = synthetic_model(options);
    const TensorSpec& matrix = builder.find("blk.0.attn_gate.weight");
    ASSERT_EQ(matrix.type_id, id);
    const double scaled = rms(info->type, matrix.data, 256 * 128) * 16.0;
    EXPECT_GT(scaled, 0.05) << info->name;
    EXPECT_LT(scaled, 4.0) << info->name;
    const double row = rms(info->type, builder.find("token_embd.weight").data, 256 * 320);
    EXPECT_GT(row, 0.05) << info->name;
    EXPECT_LT(row, 4.0) << info->name;
    ++tried;
  }
  EXPECT_EQ(tried, 28);
}

TEST(SyntheticModel, QuantisersRoundToNearest) {
  std::vector<float> values(64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i) * 1.7F) * 3.0F;
  const auto worst = [&](DType type) {
    std::vector<float> back(values.size());
    dequantize_row(type, quantise(type, values).data(), values.size(), back.data());
    double error = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i)
      error = std::max(error, std::abs(double{values[i]} - double{back[i]}));
    return error;
  };
  EXPECT_EQ(worst(DType::F32), 0.0);
  EXPECT_LE(worst(DType::F16), 3.0 / 2048);
  EXPECT_LE(worst(DType::BF16), 3.0 / 256);
  EXPECT_LE(worst(DType::Q8_0), 3.0 / 127 * 0.502);  // half a step, and the rounding of the scale
  EXPECT_LE(worst(DType::Q4_0), 3.0 / 7 * 0.505);
  EXPECT_EQ(quantise(DType::Q8_0, std::vector<float>(32, 0.0F)), std::vector<std::uint8_t>(34, 0));
}

TEST(SyntheticModel, SameSeedSameFile) {
  EXPECT_EQ(synthetic_model().build(), synthetic_model().build());
  SyntheticOptions other;
  other.seed = 2;
  EXPECT_NE(synthetic_model().build(), synthetic_model(other).build());
}

TEST(SyntheticModel, HasAWorkingTokenizer) {
  const std::vector<std::uint8_t> image = synthetic_model().build();
  const Gguf gguf = Gguf::parse(image);
  const Tokenizer tokenizer = Tokenizer::from_gguf(gguf);
  EXPECT_EQ(tokenizer.size(), 320U);
  EXPECT_EQ(tokenizer.find_special("<|im_end|>"), kImEnd);
  EXPECT_TRUE(tokenizer.is_stop(kEndOfText) && tokenizer.is_stop(kImEnd));
  const std::string text = "in the sing on\nthe \xFF";
  const std::vector<TokenId> ids = tokenizer.encode(text, false);
  EXPECT_LT(ids.size(), text.size());  // merges apply
  EXPECT_EQ(tokenizer.decode(ids), text);
}

}  // namespace
}  // namespace tandem::testing
