// Random bits at the speed of memory, the same on every machine for one seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::bench {

// splitmix64: turns any numbers, also neighbouring ones, into unrelated ones.
inline std::uint64_t mix_bits(std::uint64_t v) {
  v += 0x9E3779B97F4A7C15U;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9U;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBU;
  return v ^ (v >> 31);
}

// FNV-1a over a name, so that a tensor's values depend on nothing but its name and the seed.
inline std::uint64_t name_bits(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325U ^ mix_bits(seed);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  return mix_bits(hash);
}

// Eight xorshift generators side by side, which compilers turn into vector code.
class Noise {
 public:
  static constexpr std::size_t kLanes = 8;
  explicit Noise(std::uint64_t seed) {
    for (std::size_t i = 0; i < kLanes; ++i) state_[i] = mix_bits(seed + i) | 1U;  // never 0
  }
  // The next 64 bytes.
  const std::array<std::uint64_t, kLanes>& next() {
    for (std::uint64_t& s : state_) {
      s ^= s << 13;
      s ^= s >> 7;
      s ^= s << 17;
    }
    return state_;
  }

 private:
  alignas(64) std::array<std::uint64_t, kLanes> state_;
};

// One number at a time, for small things.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() { return mix_bits(state_++); }
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double normal();
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }

 private:
  std::uint64_t state_;
};

}  // namespace tandem::bench
