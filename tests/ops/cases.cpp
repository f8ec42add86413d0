#include "tests/ops/cases.h"

#include <algorithm>

namespace tandem::testing {

namespace {

// Room for `bytes` at `offset` past an address that is a multiple of 32.
Weights place(DType type, std::size_t rows, std::size_t cols, std::size_t offset) {
  constexpr std::size_t kAlignment = 32;
  Weights w;
  w.view.type = type;
  w.view.rows = rows;
  w.view.cols = cols;
  w.view.name = "test";
  w.bytes.resize(w.view.bytes() + offset + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(w.bytes.data());
  w.view.data = w.bytes.data() + (kAlignment - address % kAlignment) % kAlignment + offset;
  return w;
}

std::uint16_t random_half(Scales scales, Random& random) {
  const auto sign = static_cast<std::uint16_t>((random.bits() & 1U) << 15);
  if (scales != Scales::kNormal) {
    switch (random.below(5)) {
      case 0:
        return static_cast<std::uint16_t>(sign | (scales == Scales::kExtreme ? 0x7BFF : 0x3BFF));
      case 1:
        return static_cast<std::uint16_t>(sign | (1 + random.below(0x3FF)));  // denormal
      case 2:
        return sign;
      default:
        break;
    }
  }
  return static_cast<std::uint16_t>(sign | float_to_half(random.uniform(0x1p-8F, 0x1p-2F)));
}

void put_half(std::uint8_t* block, int position, std::uint16_t bits) {
  if (position >= 0) std::memcpy(block + position, &bits, sizeof bits);
}

void set_scales(DType type, Scales scales, Random& random, std::uint8_t* block) {
  const bool extreme = scales == Scales::kExtreme;
  const BlockHalves halves = block_halves(type);
  put_half(block, halves.d, random_half(scales, random));
  put_half(block, halves.second, random_half(scales, random));
  if (type == DType::MXFP4) {  // 2^(e - 128); 0 and 1 are float denormals
    block[0] = static_cast<std::uint8_t>(120 + random.below(8));
    if (scales != Scales::kNormal && random.below(3) == 0) block[0] = static_cast<std::uint8_t>(random.below(3));
    if (extreme && random.below(3) == 0) block[0] = static_cast<std::uint8_t>(128 + random.below(70));
  }
  if (type == DType::NVFP4) {  // unsigned E4M3: 0x00 and 0x7F mean zero, up to 0x07 denormal, 0x7E the largest
    for (int j = 0; j < 4; ++j) {
      block[j] = static_cast<std::uint8_t>(0x18 + random.below(0x20));
      if (scales != Scales::kNormal && random.below(3) == 0) block[j] = static_cast<std::uint8_t>(random.below(0x09));
      if (extreme && random.below(3) == 0) block[j] = static_cast<std::uint8_t>(0x7C + random.below(4));
    }
  }
  if (type == DType::IQ1_M) {  // the scale is spread over the top nibbles of four words
    const std::uint16_t bits = random_half(scales, random);
    for (int i = 0; i < 4; ++i) {
      std::uint8_t& high = block[49 + 2 * i];
      high = static_cast<std::uint8_t>((high & 15) | ((bits >> (4 * i)) & 15) << 4);
    }
  }
}

}  // namespace

Weights block_weights(DType type, std::size_t rows, std::size_t cols, Scales scales, Random& random,
                      std::size_t offset) {
  Weights w = place(type, rows, cols, offset);
  const DTypeInfo& info = dtype_info(type);
  auto* const first = const_cast<std::uint8_t*>(w.view.data);
  for (std::size_t b = 0; b < w.view.bytes() / info.block_bytes; ++b) {
    std::uint8_t* block = first + b * info.block_bytes;
    constexpr std::uint8_t kFills[] = {0x00, 0xFF, 0x80, 0x7F};
    const bool filled = scales != Scales::kNormal && random.below(2) == 0;
    const std::uint8_t fill = kFills[random.below(4)];
    for (std::size_t i = 0; i < info.block_bytes; ++i)
      block[i] = filled ? fill : static_cast<std::uint8_t>(random.bits());
    set_scales(type, scales, random, block);
  }
  return w;
}

Weights filled_block_weights(DType type, std::size_t rows, std::size_t cols, std::uint8_t fill, Random& random) {
  Weights w = place(type, rows, cols, 3);
  auto* const first = const_cast<std::uint8_t*>(w.view.data);
  std::fill_n(first, w.view.bytes(), fill);
  for (std::size_t at = 0; at < w.view.bytes(); at += dtype_info(type).block_bytes)
    set_scales(type, Scales::kNormal, random, first + at);
  return w;
}

std::uint16_t half_of(float value, Random& random) {
  const std::uint16_t half = float_to_half(std::clamp(value, -6e4F, 6e4F));
  const bool vanished = (half & 0x7FFF) == 0 && value != 0.0F;
  return static_cast<std::uint16_t>(vanished ? half | (1 + random.below(0x3FF)) : half);
}

Weights float_weights(DType type, std::size_t rows, std::size_t cols, Values values, Random& random,
                      std::size_t offset) {
  Weights w = place(type, rows, cols, offset);
  auto* const first = const_cast<std::uint8_t*>(w.view.data);
  for (std::size_t i = 0; i < rows * cols; ++i) {
    const float value = std::clamp(draw(random, values), -1e4F, 1e4F);
    if (type == DType::F32) {
      std::memcpy(first + 4 * i, &value, 4);
    } else if (type == DType::F16) {
      const std::uint16_t half = half_of(value, random);
      std::memcpy(first + 2 * i, &half, 2);
    } else {
      std::memcpy(first + 2 * i, reinterpret_cast<const std::uint8_t*>(&value) + 2, 2);
    }
  }
  return w;
}

}  // namespace tandem::testing
