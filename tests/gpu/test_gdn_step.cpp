// A GDN layer between its first products and its last one in one launch, against ReferenceOps doing it operation by
// operation, bit for bit: windows and committed passes of 1 to 4 rows, replayed rows whose log is overwritten by the
// new one, values to the ends of the range.
#include <gtest/gtest.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/gdn_step.h"
#include "gpu/kernels/quantize.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

constexpr float kEps = 1e-6F;
constexpr std::size_t kWindow = 16;  // rows of a log

struct StepShape {
  std::size_t key_heads, value_heads, dim, taps;
};

struct StepCase {
  StepShape shape;
  std::size_t rows = 1, replay = 0;
  bool window = true, quantised = true;
  Values values = Values::kNormal;
  bool spoilt = false;  // a value of z that is not finite
  std::string name() const {
    return fmt::format("{} + {} heads of {}, {} taps, {} rows, {} replayed, {}{}, {}{}", shape.key_heads,
                       shape.value_heads, shape.dim, shape.taps, rows, replay, window ? "window" : "committed",
                       quantised ? ", quantised" : "", values_name(values), spoilt ? ", spoilt" : "");
  }
};

void run_case(const StepCase& c, Random& random) {
  const auto [key_heads, n, dim, taps_n] = c.shape;
  const std::size_t w = c.rows, keys = key_heads * dim, width = n * dim, channels = 2 * keys + width;
  const auto small = [&](std::size_t count) {  // a state that stays in range
    std::vector<float> v(count);
    for (float& x : v) x = 0.1F * random.uniform();
    return v;
  };
  const Changed alpha(drawn(random, w * n)), beta(drawn(random, w * n)), qkv(drawn(random, w * channels, c.values)),
      history(drawn(random, std::max<std::size_t>(1, (taps_n - 1) * channels), c.values)),
      taps(drawn(random, taps_n * channels)), bias(drawn(random, n)), norm(drawn(random, dim)), a([&] {
        auto v = drawn(random, n);  // below zero, so that a state decays
        for (float& value : v) value = -std::fabs(value);
        return v;
      }()),
      z([&] {
        auto v = drawn(random, w * width, c.values);
        if (c.spoilt) v[(w - 1) * width + width / 2] = std::numeric_limits<float>::quiet_NaN();
        return v;
      }());
  Changed state(small(width * dim)), log_k(small(kWindow * keys)), log_u(small(kWindow * width)),
      log_decay(small(kWindow * n)), window(drawn(random, kWindow * channels)), o(drawn(random, w * width));
  const std::vector<float> raw_k = log_k.host, raw_u = log_u.host, raw_decay = log_decay.host;  // what is replayed

  std::vector<std::int8_t> codes(w * width);
  std::vector<float> scales(w * width / 32);
  std::vector<std::int32_t> sums(w * width / 16);
  std::vector<float> decay = alpha.host, betas = beta.host, conv(w * channels), q(w * keys), k(w * keys);
  Ops::GdnStep step;
  ReferenceOps reference;
  GdnInput& in = step.input;
  in.key_heads = key_heads, in.dim = dim;
  in.alpha = Rows(decay.data(), w, n), in.beta = Rows(betas.data(), w, n), in.dt_bias = bias.host.data(),
  in.a = a.host.data();
  in.qkv = ConstRows(qkv.host.data(), w, channels), in.taps = ConstRows(taps.host.data(), taps_n, channels);
  in.history = {const_cast<float*>(history.host.data()), window.host.data(), taps_n - 1, channels};
  in.log = c.window, in.eps = kEps, in.scale = 0.3F;
  in.conv = Rows(conv.data(), w, channels), in.q = Rows(q.data(), w, keys), in.k = Rows(k.data(), w, keys);
  step.scan = {key_heads,
               n,
               dim,
               state.host.data(),
               ConstRows(raw_k.data(), c.replay, keys),
               ConstRows(raw_u.data(), c.replay, width),
               ConstRows(raw_decay.data(), c.replay, n),
               in.q,
               in.k,
               ConstRows(conv.data() + 2 * keys, w, width, channels),
               in.alpha,
               in.beta,
               Rows(o.host.data(), w, width),
               c.window ? Rows(log_u.host.data(), w, width) : Rows()};
  GdnResult& r = step.result;
  r.dim = dim, r.norm = norm.host.data(), r.eps = kEps;
  r.o = step.scan.out, r.z = ConstRows(z.host.data(), w, width);
  if (c.quantised) r.q = {codes.data(), scales.data(), sums.data(), w, width};
  r.k = in.k, r.decay = in.alpha;
  if (c.window) r.log_k = log_k.host.data(), r.log_decay = log_decay.host.data();
  const std::int64_t expected_bad = reference.gdn_step(step);

  DeviceBuffer<std::int8_t> d_codes(codes.size());
  DeviceBuffer<float> d_scales(scales.size());
  DeviceBuffer<std::int32_t> d_sums(sums.size());
  const auto bad = on_device(std::vector<std::int32_t>{kNoBadRow});
  const auto count = on_device(std::vector<std::int32_t>{static_cast<std::int32_t>(c.replay)});
  DeviceBuffer<std::uint32_t> arrived(key_heads);
  CUDA_CHECK(cudaMemset(arrived.get(), 0, key_heads * sizeof(std::uint32_t)));
  gpu::DeviceGdnStep card;
  card.in.alpha = {const_cast<float*>(alpha.card.get()), w, n};
  card.in.beta = {const_cast<float*>(beta.card.get()), w, n};
  card.in.key_heads = key_heads, card.in.dim = dim, card.in.dt_bias = bias.card.get(), card.in.a = a.card.get();
  card.in.qkv = {qkv.card.get(), w, channels}, card.in.taps = {taps.card.get(), taps_n, channels};
  card.in.history = {history.card.get(), taps_n - 1, channels};
  card.in.window = c.window ? window.card.get() : nullptr;
  card.in.eps = kEps, card.in.scale = 0.3F;
  card.scan.key_heads = key_heads, card.scan.value_heads = n, card.scan.dim = dim;
  card.scan.state = state.card.get();
  card.scan.replay_k = {log_k.card.get(), kWindow, keys}, card.scan.replay_u = {log_u.card.get(), kWindow, width};
  card.scan.replay_decay = {log_decay.card.get(), kWindow, n};
  card.scan.replay_count = count.get();
  if (c.window) card.scan.log_u = {log_u.card.get(), w, width};
  card.result.dim = dim, card.result.norm = norm.card.get(), card.result.eps = kEps;
  card.result.o = {o.card.get(), w, width}, card.result.z = {z.card.get(), w, width};
  if (c.quantised)
    card.result.q_codes = d_codes.get(), card.result.q_scales = d_scales.get(), card.result.q_sums = d_sums.get();
  card.result.bad = bad.get();
  if (c.window) card.result.log_k = log_k.card.get(), card.result.log_decay = log_decay.card.get();
  card.arrived = arrived.get();
  ASSERT_TRUE(gpu::can_step(card)) << c.name();
  gpu::gdn_step(card, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());

  ASSERT_EQ(o.difference(width), "") << c.name();
  ASSERT_EQ(state.difference(dim), "") << "state, " << c.name();
  ASSERT_EQ(log_u.difference(width), "") << "log of u, " << c.name();
  ASSERT_EQ(log_k.difference(keys), "") << "log of keys, " << c.name();
  ASSERT_EQ(log_decay.difference(n), "") << "log of decays, " << c.name();
  ASSERT_EQ(window.difference(channels), "") << "log of qkv, " << c.name();
  for (const Changed* same : {&alpha, &beta, &qkv, &history, &taps, &bias, &a, &norm, &z})
    ASSERT_EQ(same->difference(same->host.size()), "") << "an input, " << c.name();
  std::vector<std::uint32_t> left(key_heads);
  arrived.download(left.data());
  for (const std::uint32_t v : left) ASSERT_EQ(v, 0U) << "arrived, " << c.name();
  std::int32_t found_bad;
  bad.download(&found_bad);
  ASSERT_EQ(found_bad, expected_bad < 0 ? kNoBadRow : static_cast<std::int32_t>(expected_bad)) << c.name();
  if (!c.quantised) return;
  std::vector<std::int8_t> found_codes(codes.size());
  std::vector<float> found_scales(scales.size());
  std::vector<std::int32_t> found_sums(sums.size());
  d_codes.download(found_codes.data());
  d_scales.download(found_scales.data());
  d_sums.download(found_sums.data());
  // The reference stops at the first bad row.
  const std::size_t good = expected_bad < 0 ? w : static_cast<std::size_t>(expected_bad);
  ASSERT_TRUE(good == w || c.spoilt || c.values != Values::kNormal) << "NaN in " << c.name();
  for (std::size_t i = 0; i < good * width; ++i) ASSERT_EQ(found_codes[i], codes[i]) << c.name() << ", code " << i;
  for (std::size_t i = 0; i < good * width / 32; ++i)
    ASSERT_TRUE(same_bits(found_scales[i], scales[i])) << c.name() << ", scale " << i;
  for (std::size_t i = 0; i < good * width / 16; ++i) ASSERT_EQ(found_sums[i], sums[i]) << c.name() << ", sum " << i;
}

constexpr StepShape kRealShape{16, 48, 128, 4};
// One key head for all and one for each; fewer taps; smaller heads.
constexpr StepShape kShapes[] = {{2, 4, 32, 4},  {1, 3, 64, 3}, {3, 3, 128, 1},
                                 {1, 5, 128, 2}, {2, 6, 64, 4}, {5, 5, 32, 2}};

class GdnStepTest : public GpuTest {
 protected:
  Random random_{97};
};

TEST_F(GdnStepTest, EveryWidthAndReplay) {
  for (std::size_t rows = 1; rows <= gpu::kStepRows; ++rows)
    for (const std::size_t replay : {0UL, 1UL, rows, 16UL})
      for (const bool window : {true, false}) {
        run_case({kRealShape, rows, replay, window}, random_);
        if (HasFatalFailure()) return;
      }
}

TEST_F(GdnStepTest, Shapes) {
  for (const StepShape& shape : kShapes)
    for (std::size_t rows = 1; rows <= gpu::kStepRows; ++rows)
      for (const bool window : {true, false})
        for (const bool quantised : {true, false}) {
          run_case({shape, rows, rows % 4, window, quantised}, random_);
          if (HasFatalFailure()) return;
        }
}

TEST_F(GdnStepTest, AllKindsOfValues) {
  for (const Values values : {Values::kNormal, Values::kTiny, Values::kDenormal, Values::kLarge, Values::kMixed})
    for (const std::size_t rows : {1UL, 4UL})
      for (const bool spoilt : {false, true}) {
        if (spoilt && values != Values::kNormal) continue;
        StepCase c{kRealShape, rows, 2, true, true, values};
        c.spoilt = spoilt;
        run_case(c, random_);
        if (HasFatalFailure()) return;
      }
}

// More blocks of a key head than the card holds: the first have ended when the last read the keys to replay.
TEST_F(GdnStepTest, HeadsThatComeLater) {
  run_case({{1, 1000, 64, 4}, 2, 3}, random_);
}

// What it leaves to the single operations.
TEST_F(GdnStepTest, SaysWhatItCannotDo) {
  gpu::DeviceGdnStep step;
  const auto fits = [&](std::size_t dim, std::size_t rows, std::size_t taps) {
    step.in.dim = dim;
    step.in.taps = {nullptr, taps, 4 * dim};
    step.in.qkv = {nullptr, rows, 4 * dim};
    return gpu::can_step(step);
  };
  EXPECT_TRUE(fits(128, 4, 4));
  EXPECT_FALSE(fits(128, 5, 4));
  EXPECT_FALSE(fits(128, 1, 5));
  EXPECT_FALSE(fits(96, 1, 4));
  EXPECT_FALSE(fits(16, 1, 4));
  EXPECT_TRUE(fits(64, 1, 4));
  step.in.qkv.data = reinterpret_cast<const float*>(std::uintptr_t{8});
  EXPECT_FALSE(gpu::can_step(step));
}

}  // namespace
}  // namespace tandem::testing
