// READ of a hyper-connection module on the card (three launches) against ReferenceOps' sequence of single operations,
// bit for bit: every pair of types, the model's shape and small ones, windows of 1 to 16 rows, with and without a WRITE
// before it.
#include <gtest/gtest.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/hc_read.h"
#include "gpu/kernels/quantize.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

constexpr std::size_t kStreams = kHcStreams, kMost = kHcRows;
constexpr float kEps = 1e-6F;
constexpr DType kDownTypes[] = {DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::IQ4_NL,
                                DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_XS};
constexpr DType kUpTypes[] = {DType::Q8_0, DType::Q4_0, DType::Q5_0, DType::IQ4_NL};

template <typename T>
std::vector<T> downloaded(const DeviceBuffer<T>& buffer) {
  std::vector<T> values(buffer.size());
  buffer.download(values.data());
  return values;
}

// Quantised rows of both sides.
struct Quantised {
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
  Quantised(std::size_t rows, std::size_t cols) : q(rows * cols), d(rows * cols / 32), s(rows * cols / 16) {}
  QuantRows rows(std::size_t n, std::size_t cols) { return {q.data(), d.data(), s.data(), n, cols}; }
};
// Whether rows [first, last) are the same bits.
std::string quant_difference(const Quantised& expected, const Quantised& found, std::size_t cols, std::size_t first,
                             std::size_t last) {
  for (std::size_t i = first * cols; i < last * cols; ++i)
    if (expected.q[i] != found.q[i])
      return fmt::format("q row {} column {}: {} for {}", i / cols, i % cols, found.q[i], expected.q[i]);
  for (std::size_t i = first * cols / 32; i < last * cols / 32; ++i)
    if (!same_bits(expected.d[i], found.d[i]))
      return fmt::format("d row {} block {}: {} for {}", i / (cols / 32), i % (cols / 32), found.d[i], expected.d[i]);
  for (std::size_t i = first * cols / 16; i < last * cols / 16; ++i)
    if (expected.s[i] != found.s[i])
      return fmt::format("s row {} half {}: {} for {}", i / (cols / 16), i % (cols / 16), found.s[i], expected.s[i]);
  return "";
}

// A module, its input and what the reference makes of it, rows of their own.
struct Case {
  std::size_t d, rank, wide = kStreams * d;
  Weights down, up, inject;
  HcWeights weights;
  std::vector<float> gamma, x, written, logits;
  // results of the reference
  std::vector<float> new_x, normed, low, gate, injected, mixed;
  Quantised normed_q{kMost, wide}, low_q{kMost, rank}, mixed_q{kMost, d};
  std::int64_t bad = -1;
  // on the card
  DeviceBuffer<std::uint8_t> device_down, device_up;
  DeviceBuffer<std::uint8_t> device_inject;
  DeviceBuffer<float> device_gamma, device_written;
  DeviceBuffer<std::uint8_t> scratch_memory;
  HcScratch scratch;

  Case(DType down_type, DType up_type, DType inject_type, std::size_t d_, std::size_t rank_, Random& random)
      : d(d_), rank(rank_) {
    down = block_weights(down_type, rank, wide, Scales::kNormal, random);
    up = block_weights(up_type, wide, rank, Scales::kNormal, random);
    inject = float_weights(inject_type, kStreams, wide, Values::kNormal, random);
    // Scales that keep the nonlinearities away from their ends.
    down.view.scale = 0.11F / std::sqrt(static_cast<float>(wide));
    up.view.scale = 0.37F / std::sqrt(static_cast<float>(rank));
    inject.view.scale = 0.9F / std::sqrt(static_cast<float>(wide));
    weights.down = down.view;
    weights.up = up.view;
    weights.inject = inject.view;
    const auto fill = [&](std::vector<float>& v, std::size_t size) {
      v.resize(size);
      for (float& cell : v) cell = draw(random, Values::kNormal);
    };
    fill(gamma, wide);
    fill(x, kMost * wide);
    fill(written, kMost * d);
    fill(logits, kMost * kStreams);
  }

  void expect(bool write) {
    new_x = x;
    for (auto* v : {&normed, &gate}) v->assign(kMost * wide, 0.0F);
    low.assign(kMost * rank, 0.0F);
    injected.assign(kMost * kStreams, kGuard);
    mixed.assign(kMost * d, 0.0F);
    ReferenceOps ops;
    HcRead read;
    read.streams = static_cast<int>(kStreams);
    read.eps = kEps;
    read.gamma = gamma.data();
    read.weights = &weights;
    read.x = {new_x.data(), kMost, wide};
    if (write) {
      read.written = {written.data(), kMost, d};
      read.written_inject = {logits.data(), kMost, kStreams};
    }
    read.normed = {normed.data(), kMost, wide};
    read.low = {low.data(), kMost, rank};
    read.gate = {gate.data(), kMost, wide};
    read.inject = {injected.data(), kMost, kStreams};
    read.mixed = {mixed.data(), kMost, d};
    read.normed_q = normed_q.rows(kMost, wide);
    read.low_q = low_q.rows(kMost, rank);
    read.mixed_q = mixed_q.rows(kMost, d);
    bad = ops.hc_read(read);
    if (bad < 0) bad = ops.quantize(read.mixed, read.mixed_q);
  }

  void to_card() {
    const PackedMatrix packed_down = pack_matrix(weights.down, in_order()),
                       packed_up = pack_matrix(weights.up, in_order());
    device_down = DeviceBuffer<std::uint8_t>(packed_down.bytes());
    device_down.upload(packed_down.data());
    device_up = DeviceBuffer<std::uint8_t>(packed_up.bytes());
    device_up.upload(packed_up.data());
    if (weights.inject) {
      device_inject = DeviceBuffer<std::uint8_t>(weights.inject.bytes());
      device_inject.upload(weights.inject.data);
    }
    device_gamma = on_device(gamma);
    device_written = on_device(written);
    scratch_memory = DeviceBuffer<std::uint8_t>(hc_scratch_bytes(wide, rank));
    CUDA_CHECK(cudaMemset(scratch_memory.get(), 0xFF, scratch_memory.bytes()));
    scratch = make_hc_scratch(scratch_memory.get(), wide, rank);
    CUDA_CHECK(cudaMemset(scratch.arrived, 0, scratch.arrived_bytes));
  }

  struct Found {
    std::vector<float> x, normed, low, injected, mixed;
    Quantised normed_q, low_q, mixed_q;
    std::vector<std::int32_t> bad;
    std::vector<std::uint32_t> arrived;
  };
  Found run(std::size_t w, bool write) {
    const DeviceBuffer<float> device_x = on_device(x);
    // The results have the size of all rows: what lies past the window must stay.
    const auto guarded = [](std::size_t n) { return on_device(std::vector<float>(n, kGuard)); };
    const auto normed_out = guarded(kMost * wide), low_out = guarded(kMost * rank), mixed_out = guarded(kMost * d);
    // The logits of the WRITE lie where those of this module go, as they do in a layer.
    const DeviceBuffer<float> inject_out = on_device(write ? logits : std::vector<float>(kMost * kStreams, kGuard));
    const Quantised none(kMost, d);
    const auto q = on_device(none.q);
    const auto qd = on_device(none.d);
    const auto qs = on_device(none.s);
    const auto flags = on_device(std::vector<std::int32_t>(3, kNoBadRow));
    DeviceHcRead read;
    read.eps = kEps;
    read.gamma = device_gamma.get();
    read.x = {device_x.get(), w, wide};
    if (write) {
      read.written = {device_written.get(), w, d};
      read.written_inject = {inject_out.get(), w, kStreams};
    }
    read.down = {weights.down.type, device_down.get(), rank, wide, weights.down.scale};
    read.up = {weights.up.type, device_up.get(), wide, rank, weights.up.scale};
    if (weights.inject) {
      read.inject_weights = device_inject.get();
      read.inject_type = weights.inject.type == DType::F32   ? gpu::FloatType::kF32
                         : weights.inject.type == DType::F16 ? gpu::FloatType::kF16
                                                             : gpu::FloatType::kBf16;
      read.inject_scale = weights.inject.scale;
    }
    read.normed = {normed_out.get(), w, wide};
    read.low = {low_out.get(), w, rank};
    read.inject = {inject_out.get(), w, kStreams};
    read.mixed = {mixed_out.get(), w, d};
    read.mixed_q = {q.get(), qd.get(), qs.get(), flags.get() + 2};
    read.scratch = scratch;
    read.scratch.normed_q.bad = flags.get();
    read.scratch.low_q.bad = flags.get() + 1;
    launch_hc_norm(read, nullptr);
    launch_hc_down(read, nullptr);
    launch_hc_up(read, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    Found found{downloaded(device_x),  downloaded(normed_out),
                downloaded(low_out),   downloaded(inject_out),
                downloaded(mixed_out), {kMost, wide},
                {kMost, rank},         {kMost, d},
                downloaded(flags),     {}};
    const auto take = [](Quantised& to, const auto& from) {
      CUDA_CHECK(cudaMemcpy(to.q.data(), from.q, to.q.size(), cudaMemcpyDeviceToHost));
      CUDA_CHECK(cudaMemcpy(to.d.data(), from.d, to.d.size() * 4, cudaMemcpyDeviceToHost));
      CUDA_CHECK(cudaMemcpy(to.s.data(), from.s, to.s.size() * 4, cudaMemcpyDeviceToHost));
    };
    take(found.normed_q, scratch.normed_q);
    take(found.low_q, scratch.low_q);
    take(found.mixed_q, read.mixed_q);
    found.arrived.resize(scratch.arrived_bytes / 4);
    CUDA_CHECK(cudaMemcpy(found.arrived.data(), scratch.arrived, scratch.arrived_bytes, cudaMemcpyDeviceToHost));
    return found;
  }

  // "" or what differs in rows [first, w); `alone`: no others were run.
  std::string difference(const Found& found, bool write, std::size_t first, std::size_t w, bool alone = true) const {
    const auto floats = [&](const char* what, const std::vector<float>& e, const std::vector<float>& f,
                            std::size_t cols, bool rest) -> std::string {
      std::string text =
          first_difference(e.data() + first * cols, w - first, cols, f.data() + first * cols, cols, kGuard);
      for (std::size_t i = w * cols; alone && rest && i < f.size() && text.empty(); ++i)
        if (f[i] != kGuard) text = "written past the rows";
      return text.empty() ? text : fmt::format("{}, rows from {}: {}", what, first, text);
    };
    for (const std::string& text :
         {floats("x", new_x, found.x, wide, false), floats("normed", normed, found.normed, wide, true),
          quant_difference(normed_q, found.normed_q, wide, first, w), floats("low", low, found.low, rank, true),
          quant_difference(low_q, found.low_q, rank, first, w),
          weights.inject || !write ? floats("inject", injected, found.injected, kStreams, !write) : std::string(),
          floats("mixed", mixed, found.mixed, d, true), quant_difference(mixed_q, found.mixed_q, d, first, w)})
      if (!text.empty()) return text;
    for (const std::uint32_t count : found.arrived)
      if (count != 0) return fmt::format("a counter is left at {}", count);
    return "";
  }
};

class GpuHcRead : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    load_tile_kernels();
    load_hc_kernels();
  }
  void check(Case& c, const std::string& what, std::initializer_list<std::size_t> widths) {
    c.to_card();
    for (const bool write : {false, true}) {
      c.expect(write);
      ASSERT_EQ(c.bad, -1) << what;
      for (const std::size_t w : widths) {
        const Case::Found found = c.run(w, write);
        ASSERT_EQ(c.difference(found, write, 0, w), "") << what << ", " << w << " rows, write " << write;
        for (const std::int32_t bad : found.bad) ASSERT_EQ(bad, kNoBadRow) << what;
      }
    }
  }
  Random random_{91};
};

TEST_F(GpuHcRead, TheShapeOfTheModel) {
  for (const DType down : kDownTypes) {
    const DType up = kUpTypes[static_cast<std::size_t>(&down - kDownTypes) % std::size(kUpTypes)];
    ASSERT_TRUE(can_fuse_hc_read(down, up, 16, kStreams, 2560, 320));
    Case c(down, up, DType::F32, 2560, 320, random_);
    check(c, fmt::format("{} and {}", dtype_name(down), dtype_name(up)),
          {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  }
}

TEST_F(GpuHcRead, SmallShapesAndAllPairsOfTypes) {
  struct Shape {
    std::size_t d, rank;
  };
  constexpr DType kInject[] = {DType::F32, DType::F16, DType::BF16};
  std::size_t n = 0;
  for (const Shape& s : {Shape{32, 32}, {64, 32}, {96, 64}, {128, 96}, {320, 256}, {640, 288}, {1024, 352}, {544, 544}})
    for (const DType down : kDownTypes)
      for (const DType up : kUpTypes) {
        if (kStreams * s.d % dtype_info(down).block_elems != 0) continue;
        if (!can_fuse_hc_read(down, up, 16, kStreams, s.d, s.rank)) {
          ASSERT_TRUE(s.rank > 500 && up == DType::Q8_0) << dtype_name(down) << " " << dtype_name(up) << " " << s.d;
          continue;
        }
        Case c(down, up, kInject[n++ % 3], s.d, s.rank, random_);
        if (n % 5 == 0) c.weights.inject = {};
        check(c, fmt::format("{} and {}, {} x 4, rank {}", dtype_name(down), dtype_name(up), s.d, s.rank),
              {1, 3, 4, 5, 8, 9, 16});
      }
}

TEST_F(GpuHcRead, ValuesAtTheEnds) {
  constexpr Values kKinds[] = {Values::kTiny, Values::kDenormal,     Values::kSigns,
                               Values::kZero, Values::kNegativeZero, Values::kMixed};
  Case c(DType::Q8_0, DType::Q8_0, DType::F32, 640, 320, random_);
  for (std::size_t i = 0; i < c.x.size(); ++i) c.x[i] = draw(random_, kKinds[i / c.wide % std::size(kKinds)]);
  check(c, "values", {1, 6, 16});
}

// A row that is no number is named, and the others are as they were.
TEST_F(GpuHcRead, NamesTheFirstRowThatIsNotFinite) {
  for (const std::size_t w : {1UL, 4UL, 8UL, 16UL}) {
    Case c(DType::Q8_0, DType::Q8_0, DType::F32, 640, 320, random_);
    c.to_card();
    c.expect(true);
    const std::size_t row = w - 1 - w / 4;
    c.x[row * c.wide + 1237] = std::numeric_limits<float>::infinity();
    const Case::Found found = c.run(w, true);
    EXPECT_EQ(found.bad[0], static_cast<std::int32_t>(row));
    for (std::size_t r = 0; r < w; ++r)
      if (r != row) {
        ASSERT_EQ(c.difference(found, true, r, r + 1, false), "") << "row " << r << ", " << row << " is damaged";
      }

    // Products that overflow: rows before it are zero.
    Case low(DType::Q8_0, DType::Q8_0, DType::F32, 640, 320, random_);
    std::fill_n(low.x.begin(), row * low.wide, 0.0F);
    low.weights.down.scale = 3e38F;
    low.to_card();
    const Case::Found overflow = low.run(w, false);
    EXPECT_EQ(overflow.bad[0], kNoBadRow);
    EXPECT_EQ(overflow.bad[1], static_cast<std::int32_t>(row));

    Case mixed(DType::Q8_0, DType::Q8_0, DType::F32, 640, 320, random_);
    mixed.weights.up.scale = std::numeric_limits<float>::quiet_NaN();
    mixed.to_card();
    const Case::Found damaged = mixed.run(w, false);
    EXPECT_EQ(damaged.bad[0], kNoBadRow);
    EXPECT_EQ(damaged.bad[1], kNoBadRow);
    EXPECT_EQ(damaged.bad[2], 0);
  }
}

// The last block to arrive reads what others wrote: many runs, one answer.
TEST_F(GpuHcRead, AlwaysTheSame) {
  Case c(DType::Q8_0, DType::Q8_0, DType::F32, 2560, 320, random_);
  c.to_card();
  c.expect(true);
  for (int i = 0; i < 60; ++i) {
    const std::size_t w = 1 + static_cast<std::size_t>(i) % kMost;
    ASSERT_EQ(c.difference(c.run(w, true), true, 0, w), "") << "run " << i;
  }
}

}  // namespace
}  // namespace tandem::testing
