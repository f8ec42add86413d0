#include "bench/block_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/noise.h"
#include "placement/check.h"
#include "tests/gguf_builder.h"
#include "tests/synthetic_model.h"

namespace tandem::bench {
namespace {

using testing::block_halves;
using testing::BlockHalves;

// The second half-precision number of a block over the first that makes the mean of uniform codes zero: the codes'
// middle for Q4_1 and Q5_1 (value = d c + m), the same with the sign of the format for the K types (value = d S c -
// dmin M, with S and M alike on average).
double second_ratio(DType type) {
  switch (type) {
    case DType::Q4_1:
      return -7.5;
    case DType::Q5_1:
      return -15.5;
    case DType::Q4_K:
      return 7.5;
    case DType::Q5_K:
      return 15.5;
    case DType::Q2_K:
      return 1.5;
    default:
      return 0.0;
  }
}

float read_half(const std::uint8_t* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return half_to_float(bits);
}

void write_half(std::uint8_t* at, double value) {
  const std::uint16_t bits = float_to_half(static_cast<float>(value));
  std::memcpy(at, &bits, sizeof bits);
}

// IQ1_M spreads its half over the top nibbles of four words.
constexpr std::size_t kIq1mScales = 48;

double read_iq1m_scale(const std::uint8_t* block) {
  std::uint16_t half = 0;
  for (std::size_t i = 0; i < 4; ++i)
    half = static_cast<std::uint16_t>(half | (block[kIq1mScales + 2 * i + 1] >> 4) << (4 * i));
  return static_cast<double>(half_to_float(half));
}

void write_iq1m_scale(std::uint8_t* block, double scale) {
  const std::uint16_t half = float_to_half(static_cast<float>(scale));
  for (std::size_t i = 0; i < 4; ++i) {
    std::uint8_t& byte = block[kIq1mScales + 2 * i + 1];
    byte = static_cast<std::uint8_t>((byte & 15) | ((half >> (4 * i)) & 15) << 4);
  }
}

// The unsigned 8-bit floats of NVFP4: 4 exponent bits above 3 of mantissa.
double ue4m3_value(std::uint8_t code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

std::uint8_t nearest_ue4m3(double value) {
  std::uint8_t best = 1;  // never 0, which would clear 16 values; 0x7F is no number
  for (std::uint8_t code = 1; code < 0x7F; ++code)
    if (std::abs(ue4m3_value(code) - value) < std::abs(ue4m3_value(best) - value)) best = code;
  return best;
}

// Multiplies every value of a block by `factor`; by its magnitude for MXFP4 (to the nearest power of two) and NVFP4,
// whose scales have no sign.
void scale_block(DType type, double factor, std::uint8_t* block) {
  const BlockHalves halves = block_halves(type);
  if (type == DType::MXFP4) {
    const int shift = static_cast<int>(std::lround(std::log2(std::abs(factor))));
    block[0] = static_cast<std::uint8_t>(std::clamp(block[0] + shift, 1, 254));
  }
  if (type == DType::NVFP4)
    for (std::size_t i = 0; i < 4; ++i) block[i] = nearest_ue4m3(ue4m3_value(block[i]) * std::abs(factor));
  if (type == DType::IQ1_M) write_iq1m_scale(block, read_iq1m_scale(block) * factor);
  if (halves.d < 0) return;
  const double d = static_cast<double>(read_half(block + halves.d)) * factor;
  write_half(block + halves.d, d);
  if (halves.second >= 0) write_half(block + halves.second, d * second_ratio(type));
}

double block_rms(DType type, const std::vector<std::uint8_t>& bytes) {
  const std::size_t n = bytes.size() / dtype_info(type).block_bytes * dtype_info(type).block_elems;
  std::vector<float> values(n);
  dequantize_row(type, bytes.data(), n, values.data());
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(n));
}

// Ones where a block keeps codes, zeros where it keeps what sets the size of its values. Floats keep their exponent and
// the first three bits after the point.
std::vector<std::uint8_t> code_bits(DType type) {
  if (type == DType::F32) return {0xFF, 0xFF, 0x0F, 0x80};
  if (type == DType::F16) return {0x7F, 0x80};
  if (type == DType::BF16) return {0x0F, 0x80};
  std::vector<std::uint8_t> bits(dtype_info(type).block_bytes, 0xFF);
  const BlockHalves halves = block_halves(type);
  for (const int at : {halves.d, halves.second})
    if (at >= 0) std::fill_n(bits.begin() + at, 2, std::uint8_t{0});
  if (type == DType::MXFP4) bits[0] = 0;
  if (type == DType::NVFP4) std::fill_n(bits.begin(), 4, std::uint8_t{0});
  if (type == DType::IQ1_M)
    for (std::size_t i = 0; i < 4; ++i) bits[kIq1mScales + 2 * i + 1] = 0x0F;
  return bits;
}

std::vector<std::uint8_t> float_blocks(DType type, double rms, std::size_t count, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(draws.normal() * rms);
  return testing::quantise(type, values);
}

}  // namespace

BlockPool::BlockPool(DType type, double rms, std::uint64_t seed) : type_(type) {
  constexpr std::size_t kBytes = 128U << 10;  // with its mask inside a second-level cache
  const DTypeInfo& info = dtype_info(type);
  CHECK(info.kind != DTypeKind::kStorage && rms > 0, "{}, {}", info.name, rms);
  const std::size_t count = kBytes / info.block_bytes / 64 * 64;
  if (info.kind == DTypeKind::kFloat) {
    blocks_ = float_blocks(type, rms, count, seed);
  } else {
    blocks_ = testing::random_weights(type, count * info.block_elems, static_cast<std::uint32_t>(mix_bits(seed)));
    Draws draws(seed);
    const auto scale_all = [&](const auto& factor) {
      for (std::size_t k = 0; k < count; ++k) scale_block(type, factor(), blocks_.data() + k * info.block_bytes);
    };
    scale_all([] { return 1.0; });  // sets the second scales
    const double factor = rms / block_rms(type, blocks_);
    // Random signs of the scales: codes whose mean is not 0 (Q2_0: -1, 0, 1, 2) would give every row the same bias.
    scale_all([&] { return (draws.bits() & 1U) != 0 ? factor : -factor; });
  }
  const std::vector<std::uint8_t> bits = code_bits(type);
  for (std::size_t i = 0; i < blocks_.size(); ++i) mask_.push_back(bits[i % bits.size()]);
}

void BlockPool::fill(std::uint64_t seed, std::uint8_t* out, std::size_t count) const {
  constexpr std::size_t kStep = 64;
  Noise noise(seed);
  for (std::size_t done = 0; done < count; done += kStep) {
    const std::size_t at = done % blocks_.size();  // whole steps, since the pool is a multiple of 64 bytes
    std::uint64_t block[Noise::kLanes], mask[Noise::kLanes];
    std::memcpy(block, blocks_.data() + at, kStep);
    std::memcpy(mask, mask_.data() + at, kStep);
    const std::array<std::uint64_t, Noise::kLanes>& bits = noise.next();
    for (std::size_t i = 0; i < Noise::kLanes; ++i) block[i] ^= bits[i] & mask[i];
    std::memcpy(out + done, block, std::min(kStep, count - done));
  }
}

}  // namespace tandem::bench
