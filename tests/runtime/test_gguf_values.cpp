// find_bad_values: one bad value planted in otherwise healthy data, at every kind of place.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/runtime/gguf_cases.h"

namespace tandem {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::optional<std::string> check(DType type, const Bytes& bytes) {
  GgufTensor tensor;
  tensor.name = "some.weight";
  tensor.type = type;
  tensor.bytes = bytes.size();
  tensor.data = bytes.data();
  return find_bad_values(tensor);
}

void expect_words(const std::optional<std::string>& message, const std::vector<std::string>& words) {
  ASSERT_TRUE(message.has_value());
  for (const std::string& word : words) EXPECT_NE(message->find(word), std::string::npos) << word << " in " << *message;
}

std::vector<const DTypeInfo*> weight_types() {
  std::vector<const DTypeInfo*> types;
  for (std::uint32_t id = 0; id < 43; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info != nullptr && info->kind != DTypeKind::kStorage) types.push_back(info);
  }
  return types;
}

TEST(BadValues, HealthyDataOfEveryTypePasses) {
  for (const DTypeInfo* info : weight_types()) {
    const Bytes bytes = testing::random_weights(info->type, 2048, 5);
    EXPECT_EQ(check(info->type, bytes), std::nullopt) << info->name;
    std::vector<float> values(2048);
    dequantize_row(info->type, bytes.data(), values.size(), values.data());
    double sum_abs = 0;
    for (const float value : values) {
      ASSERT_LE(std::fabs(value), 8.0F) << info->name;
      sum_abs += std::fabs(value);
    }
    EXPECT_GT(sum_abs, 10.0) << info->name;  // and not all zero
  }
}

TEST(BadValues, HalfScalesOfEveryBlockType) {
  for (const DTypeInfo* info : weight_types()) {
    const testing::BlockHalves halves = testing::block_halves(info->type);
    for (const int position : {halves.d, halves.second}) {
      if (info->kind != DTypeKind::kBlock || position < 0) continue;
      for (const std::uint16_t half : std::initializer_list<std::uint16_t>{0x7C00, 0xFC00, 0x7E00, 0xFC01}) {
        Bytes bytes = testing::random_weights(info->type, 4096, 6);
        const std::size_t last = bytes.size() / info->block_bytes - 1;
        std::memcpy(bytes.data() + last * info->block_bytes + position, &half, 2);
        expect_words(check(info->type, bytes), {"'some.weight'", std::string(info->name),
                                                "block " + std::to_string(last), "expected a finite scale", "found"});
      }
      Bytes largest = testing::random_weights(info->type, 4096, 6);
      const std::uint16_t finite = 0xFBFF;
      std::memcpy(largest.data() + position, &finite, 2);
      EXPECT_EQ(check(info->type, largest), std::nullopt) << info->name;
    }
  }
}

TEST(BadValues, ScaleInNibblesOfIq1M) {
  const std::uint16_t samples[] = {0x7C00, 0xFC00, 0x7E12, 0x7BFF, 0x3C00, 0x7800, 0x6C00};
  for (const std::uint16_t half : samples) {
    Bytes bytes = testing::random_weights(DType::IQ1_M, 512, 7);
    for (std::size_t i = 0; i < 4; ++i) {
      std::uint8_t& high = bytes[56 + 49 + 2 * i];
      high = static_cast<std::uint8_t>((high & 15) | ((half >> (4 * i)) & 15) << 4);
    }
    EXPECT_EQ(check(DType::IQ1_M, bytes).has_value(), (half & 0x7C00) == 0x7C00) << half;
  }
}

TEST(BadValues, ExponentOfMxFp4) {
  Bytes bytes = testing::random_weights(DType::MXFP4, 320, 8);
  bytes[3 * 17] = 0xFE;
  EXPECT_EQ(check(DType::MXFP4, bytes), std::nullopt);
  bytes[3 * 17] = 0xFF;
  expect_words(check(DType::MXFP4, bytes), {"'some.weight'", "MXFP4", "block 3", "found exponent 0xFF"});
}

TEST(BadValues, NvFp4HasNone) {
  EXPECT_EQ(check(DType::NVFP4, Bytes(72, 0xFF)), std::nullopt);
}

template <typename Value>
void expect_found(DType type, Value bad, std::string_view word) {
  Bytes bytes(7 * sizeof(Value));
  EXPECT_EQ(check(type, bytes), std::nullopt);
  std::memcpy(bytes.data() + 5 * sizeof bad, &bad, sizeof bad);
  expect_words(check(type, bytes),
               {"'some.weight'", "value 5", "expected a finite number", "found " + std::string(word)});
}

TEST(BadValues, FloatData) {
  expect_found(DType::F32, std::numeric_limits<float>::infinity(), "inf");
  expect_found(DType::F32, std::numeric_limits<float>::quiet_NaN(), "nan");
  expect_found(DType::F64, -std::numeric_limits<double>::infinity(), "-inf");
  expect_found(DType::F16, std::uint16_t{0x7C00}, "inf");
  expect_found(DType::F16, std::uint16_t{0x7C01}, "nan");
  expect_found(DType::BF16, std::uint16_t{0x7F80}, "inf");
  expect_found(DType::BF16, std::uint16_t{0x7FC0}, "nan");
  EXPECT_EQ(check(DType::I32, Bytes(8, 0xFF)), std::nullopt);
}

}  // namespace
}  // namespace tandem
