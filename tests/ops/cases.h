// Values, shapes and weights that the tests of the operations sweep over.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {

// A small generator, the same numbers everywhere (splitmix64).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t v = state_;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9U;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBU;
    return v ^ (v >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }
  // In [low, high).
  float uniform(float low = -1.0F, float high = 1.0F) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24F);
  }
  float sign() { return (bits() & 1U) != 0 ? 1.0F : -1.0F; }

 private:
  std::uint64_t state_;
};

enum class Values {
  kNormal,  // magnitudes around 1, both signs
  kTiny,    // 1e-25: products vanish, and leave -0 behind when they are negative
  kDenormal,
  kLarge,  // 1e30
  kSigns,  // +-0.75: every quantised code is +-127
  kZero,
  kNegativeZero,
  kMixed,  // one of the others for every element (large ones 1e15, so that sums of products stay finite)
};
inline constexpr Values kAllValues[] = {Values::kNormal, Values::kTiny, Values::kDenormal,     Values::kLarge,
                                        Values::kSigns,  Values::kZero, Values::kNegativeZero, Values::kMixed};

inline std::string_view values_name(Values values) {
  constexpr std::string_view kNames[] = {"normal", "tiny", "denormal", "large", "signs", "zero", "-zero", "mixed"};
  return kNames[static_cast<std::size_t>(values)];
}

inline float draw(Random& random, Values values) {
  switch (values) {
    case Values::kNormal:
      return random.uniform() * std::ldexp(1.0F, static_cast<int>(random.below(5)) - 2);
    case Values::kTiny:
      return random.uniform() * 1e-25F;
    case Values::kDenormal:
      return random.sign() * static_cast<float>(random.below(1U << 23)) * 0x1p-149F;
    case Values::kLarge:
      return random.sign() * random.uniform(0.5F, 1.0F) * 1e30F;
    case Values::kSigns:
      return random.sign() * 0.75F;
    case Values::kZero:
      return 0.0F;
    case Values::kNegativeZero:
      return -0.0F;
    case Values::kMixed:
      break;
  }
  const auto pick = static_cast<Values>(random.below(7));
  return pick == Values::kLarge ? random.sign() * 1e15F : draw(random, pick);
}

// Batch widths and row lengths.
inline constexpr std::size_t kRowCounts[] = {1, 2, 3, 5, 16, 40};
inline constexpr std::size_t kBlockLengths[] = {32, 64, 96, 160, 256, 288, 320, 640, 2560};
inline constexpr std::size_t kFloatLengths[] = {1, 7, 24, 31, 32, 33, 64, 255, 256, 257, 640, 2560};

inline std::vector<DType> types_of_kind(DTypeKind kind) {
  std::vector<DType> types;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info != nullptr && info->kind == kind) types.push_back(info->type);
  }
  return types;
}

// A weight matrix in memory of its own, `offset` bytes past an alignment of 32: files keep tensors so aligned, but
// neither their rows nor the experts inside them.
struct Weights {
  Weights() = default;
  Weights(Weights&&) = default;  // the view points into the bytes
  Weights& operator=(Weights&&) = default;

  std::vector<std::uint8_t> bytes;
  WeightView view;
};

enum class Scales {
  kNormal,    // about 2^-8 .. 2^-2, both signs
  kExtreme,   // also the largest half, half denormals, +-0; codes all zero, all one, 0x80, 0x7F
  kModerate,  // as extreme, but at most about 1, for activations of 1e30
};

// Random blocks of a block format, all values finite.
Weights block_weights(DType type, std::size_t rows, std::size_t cols, Scales scales, Random& random,
                      std::size_t offset = 0);

// The same with every byte that is not part of a float scale equal to `fill`.
Weights filled_block_weights(DType type, std::size_t rows, std::size_t cols, std::uint8_t fill, Random& random);

// The half nearest to a value of at most 6e4, but never zero for a value that is not: what vanishes becomes a random
// half denormal, which is what this type has in place of tiny floats.
std::uint16_t half_of(float value, Random& random);

// A float matrix (F32, F16, BF16); large values are as large as the type allows up to 1e4.
Weights float_weights(DType type, std::size_t rows, std::size_t cols, Values values, Random& random,
                      std::size_t offset = 0);

}  // namespace tandem::testing
