#include "gpu/expert_check.h"

#include <algorithm>
#include <bit>

namespace tandem {

namespace {
// Where the parts of a sample lie.
struct Parts {
  std::size_t q, d, s, y, bytes;
  Parts(std::size_t used, std::size_t cols, std::size_t out) {
    std::size_t at = 0;
    const auto part = [&](std::size_t size) {
      const std::size_t begin = at;
      at += (size + 63) / 64 * 64;
      return begin;
    };
    part(used * sizeof(std::int32_t));
    q = part(cols);
    d = part(cols / 32 * sizeof(float));
    s = part(cols / 16 * sizeof(std::int32_t));
    y = part(used * out * sizeof(float));
    bytes = at;
  }
};
}  // namespace

ExpertCheck::Sample ExpertCheck::take(const ExpertBank& bank, int layer, const Routes& hits, const QuantRows& x,
                                      ConstRows y) {
  CHECK(y.stride == y.cols, "results {} apart", y.stride);
  const Parts parts(hits.used, x.cols, y.cols);
  Sample sample{&bank, layer, hits.used, x.cols, y.cols, memory_.allocate_staging(parts.bytes)};
  std::uint8_t* base = sample.staging.get();
  memory_.fetch(base, hits.expert, hits.used * sizeof(std::int32_t));
  memory_.fetch(base + parts.q, x.q, x.cols);
  memory_.fetch(base + parts.d, x.d, x.cols / 32 * sizeof(float));
  memory_.fetch(base + parts.s, x.s, x.cols / 16 * sizeof(std::int32_t));
  memory_.fetch(base + parts.y, y.data, hits.used * y.cols * sizeof(float));
  return sample;
}

void ExpertCheck::compare(const std::vector<Sample>& samples, Ops& cpu) {
  for (const Sample& sample : samples) {
    const Parts parts(sample.used, sample.cols, sample.out);
    std::uint8_t* base = sample.staging.get();
    const auto* ids = reinterpret_cast<const std::int32_t*>(base);
    // Another rank every time, the next one that was computed on the card.
    std::size_t rank = turn_++ % sample.used, tries = 0;
    while (tries < sample.used && ids[rank] < 0) rank = (rank + 1) % sample.used, ++tries;
    if (tries == sample.used) continue;  // all of them were the crew's
    Activation a;
    a.x = ConstRows(nullptr, 1, sample.cols);
    a.q = {reinterpret_cast<std::int8_t*>(base + parts.q), reinterpret_cast<float*>(base + parts.d),
           reinterpret_cast<std::int32_t*>(base + parts.s), 1, sample.cols};
    result_.resize(sample.out);
    cpu.ffn(sample.bank->expert(ids[rank]), a, Rows(result_.data(), 1, sample.out));
    const float* card = reinterpret_cast<const float*>(base + parts.y) + rank * sample.out;
    for (std::size_t i = 0; i < sample.out; ++i)
      CHECK(std::bit_cast<std::uint32_t>(card[i]) == std::bit_cast<std::uint32_t>(result_[i]),
            "expert {} of layer {}, value {}: the card has {:08x}, the CPU {:08x}", ids[rank], sample.layer, i,
            std::bit_cast<std::uint32_t>(card[i]), std::bit_cast<std::uint32_t>(result_[i]));
    ++compared_;
  }
}

}  // namespace tandem
