#include "bench/read_roof.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "bench/noise.h"
#include "cpu/isa.h"
#include "placement/check.h"

namespace tandem::bench {
namespace {

// Eight independent chains, so that the loads and not the xors are in the way.
__attribute__((target("avx512f"))) std::uint32_t read_avx512(const std::uint8_t* data, std::size_t bytes) {
  __m512i acc[8];
  for (__m512i& a : acc) a = _mm512_setzero_si512();
  for (std::size_t at = 0; at < bytes; at += 512)
    for (std::size_t i = 0; i < 8; ++i) acc[i] = _mm512_xor_si512(acc[i], _mm512_load_si512(data + at + 64 * i));
  for (std::size_t i = 1; i < 8; ++i) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
  alignas(64) std::uint32_t words[16];
  _mm512_store_si512(words, acc[0]);
  std::uint32_t all = 0;
  for (const std::uint32_t word : words) all ^= word;
  return all;
}

__attribute__((target("avx2"))) std::uint32_t read_avx2(const std::uint8_t* data, std::size_t bytes) {
  __m256i acc[8];
  for (__m256i& a : acc) a = _mm256_setzero_si256();
  for (std::size_t at = 0; at < bytes; at += 256)
    for (std::size_t i = 0; i < 8; ++i)
      acc[i] = _mm256_xor_si256(acc[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + at + 32 * i)));
  for (std::size_t i = 1; i < 8; ++i) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
  alignas(32) std::uint32_t words[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(words), acc[0]);
  std::uint32_t all = 0;
  for (const std::uint32_t word : words) all ^= word;
  return all;
}

using ReadFunction = std::uint32_t (*)(const std::uint8_t*, std::size_t);
const ReadFunction kRead = cpu_has("avx512f") ? read_avx512 : read_avx2;

}  // namespace

std::uint32_t read_all(const std::uint8_t* data, std::size_t bytes) {
  CHECK(reinterpret_cast<std::uintptr_t>(data) % 64 == 0 && bytes % 512 == 0, "{} bytes", bytes);
  return kRead(data, bytes);
}

std::string read_isa() {
  return kRead == read_avx512 ? "avx512" : "avx2";
}

void write_noise(WorkerTeam& team, const HugeBuffer& buffer, std::uint64_t seed) {
  constexpr std::size_t kPiece = 2U << 20, kStep = 64;
  team.run((buffer.size() + kPiece - 1) / kPiece, [&](std::size_t, std::size_t piece) {
    Noise noise(mix_bits(seed) + piece);
    const std::size_t begin = piece * kPiece, end = std::min(buffer.size(), begin + kPiece);
    for (std::size_t at = begin; at < end; at += kStep)
      std::memcpy(buffer.data() + at, noise.next().data(), std::min(kStep, end - at));
  });
}

ReadRoof measure_read_roof(WorkerTeam& team, const HugeBuffer& buffer, const SamplePlan& plan) {
  constexpr std::size_t kPiece = 1U << 20;
  const std::size_t pieces = buffer.size() / kPiece;
  CHECK(pieces >= team.workers(), "{} bytes for {} workers", buffer.size(), team.workers());
  Cursor cursor(pieces);
  std::atomic<std::uint32_t> sink{0};
  const Timing timing = measure(plan, team.workers(), pieces, [&](std::size_t units) {
    const std::size_t first = cursor.take(units);
    return team.run(units, [&](std::size_t, std::size_t unit) {
      const std::uint32_t word = read_all(buffer.data() + cursor.at(first, unit) * kPiece, kPiece);
      sink.fetch_xor(word, std::memory_order_relaxed);  // keeps the reads alive
    });
  });
  const auto bytes = static_cast<double>(kPiece);
  return {bytes / timing.per_unit.median, bytes / timing.per_unit.best};
}

}  // namespace tandem::bench
