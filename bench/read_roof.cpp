#include "bench/read_roof.h"

#include <algorithm>
#include <cstring>

#include "bench/noise.h"
#include "placement/check.h"

namespace tandem::bench {

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
