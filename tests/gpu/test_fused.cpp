// Launches that do the work of several operations, against ReferenceOps doing them one by one, bit for bit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "gpu/cuda_check.h"
#include "gpu/kernels/attention_input.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/gdn_edges.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/router.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

constexpr float kEps = 1e-6F;
constexpr std::size_t kWindow = 16;  // rows of an open window
using Fused = GpuTest;

struct GdnShape {
  std::size_t key_heads, value_heads, dim, taps;
};
constexpr GdnShape kGdnShapes[] = {{16, 48, 128, 4}, {2, 4, 32, 4},  {1, 3, 64, 3},  {2, 33, 96, 4},
                                   {1, 2, 40, 2},    {1, 1, 256, 4}, {2, 2, 160, 8}, {3, 5, 128, 1}};

TEST_F(Fused, GdnInput) {
  Random random(91);
  for (const GdnShape& s : kGdnShapes)
    for (const std::size_t w : {1UL, 2UL, 5UL, 16UL})
      for (const Values values : {Values::kNormal, Values::kTiny, Values::kDenormal, Values::kMixed})
        for (const bool log : {true, false}) {
          if (values != Values::kNormal && w != 5) continue;
          const std::size_t keys = s.key_heads * s.dim, channels = 2 * keys + s.value_heads * s.dim, n = s.value_heads;
          const auto bias = drawn(random, n), a = drawn(random, n), qkv = drawn(random, w * channels, values);
          const auto taps = drawn(random, s.taps * channels), history = drawn(random, (s.taps - 1) * channels, values);
          Changed alpha(drawn(random, w * n)), beta(drawn(random, w * n)), window(drawn(random, kWindow * channels));
          Changed conv(drawn(random, w * channels)), q(drawn(random, w * keys)), k(drawn(random, w * keys));
          const auto d_bias = on_device(bias), d_a = on_device(a), d_qkv = on_device(qkv), d_taps = on_device(taps);
          DeviceBuffer<float> d_history(std::max<std::size_t>(history.size(), 1));
          if (!history.empty()) d_history.upload(history.data());

          GdnInput in;
          in.key_heads = s.key_heads, in.dim = s.dim;
          in.alpha = Rows(alpha.host.data(), w, n), in.beta = Rows(beta.host.data(), w, n);
          in.dt_bias = bias.data(), in.a = a.data();
          in.qkv = ConstRows(qkv.data(), w, channels), in.taps = ConstRows(taps.data(), s.taps, channels);
          in.history = {const_cast<float*>(history.data()), window.host.data(), s.taps - 1, channels};
          in.log = log, in.eps = kEps, in.scale = 0.3F;
          in.conv = Rows(conv.host.data(), w, channels);
          in.q = Rows(q.host.data(), w, keys), in.k = Rows(k.host.data(), w, keys);
          const std::vector<float> before = conv.host;
          ReferenceOps().gdn_input(in);
          for (std::size_t r = 0; r < w; ++r)  // the card leaves these columns alone
            std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(r * channels), 2 * keys,
                        conv.host.begin() + static_cast<std::ptrdiff_t>(r * channels));

          gpu::DeviceGdnInput card;
          card.key_heads = s.key_heads, card.dim = s.dim;
          card.alpha = {alpha.card.get(), w, n}, card.beta = {beta.card.get(), w, n};
          card.dt_bias = d_bias.get(), card.a = d_a.get();
          card.qkv = {d_qkv.get(), w, channels}, card.taps = {d_taps.get(), s.taps, channels};
          card.history = {d_history.get(), s.taps - 1, channels};
          card.window = log ? window.card.get() : nullptr;
          card.eps = kEps, card.scale = 0.3F;
          card.conv = {conv.card.get(), w, channels};
          card.q = {q.card.get(), w, keys}, card.k = {k.card.get(), w, keys};
          gpu::gdn_input(card, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          const std::string what =
              fmt::format("{} + {} heads of {}, {} taps, {} rows, {}{}", s.key_heads, s.value_heads, s.dim, s.taps, w,
                          values_name(values), log ? ", log" : "");
          ASSERT_EQ(alpha.difference(n), "") << "decay, " << what;
          ASSERT_EQ(beta.difference(n), "") << "beta, " << what;
          ASSERT_EQ(q.difference(keys), "") << "q, " << what;
          ASSERT_EQ(k.difference(keys), "") << "k, " << what;
          ASSERT_EQ(conv.difference(channels), "") << "values, " << what;
          ASSERT_EQ(window.difference(channels), "") << "log, " << what;
        }
}

TEST_F(Fused, GdnResult) {
  Random random(92);
  for (const GdnShape& s : kGdnShapes)
    for (const std::size_t w : {1UL, 2UL, 5UL, 16UL})
      for (const Values values : {Values::kNormal, Values::kTiny, Values::kDenormal, Values::kLarge, Values::kMixed})
        for (const int kind : {0, 1, 2, 3}) {  // bits: quantised, logged
          if (values != Values::kNormal && (w != 5 || kind != 3)) continue;
          const bool quantised = (kind & 1) != 0 && s.dim % 32 == 0, log = (kind & 2) != 0;
          const std::size_t keys = s.key_heads * s.dim, width = s.value_heads * s.dim, n = s.value_heads;
          const auto z = drawn(random, w * width), norm = drawn(random, s.dim), k = drawn(random, w * keys),
                     decay = drawn(random, w * n);
          Changed o(drawn(random, w * width, values)), log_k(drawn(random, kWindow * keys)),
              log_decay(drawn(random, kWindow * n));
          const auto d_z = on_device(z), d_norm = on_device(norm), d_k = on_device(k), d_decay = on_device(decay);
          std::vector<std::int8_t> codes(w * width), found_codes(w * width);
          std::vector<float> scales(w * width / 32), found_scales(scales);
          std::vector<std::int32_t> sums(w * width / 16), found_sums(sums);
          DeviceBuffer<std::int8_t> d_codes(codes.size());
          DeviceBuffer<float> d_scales(scales.size() + 1);
          DeviceBuffer<std::int32_t> d_sums(sums.size() + 1);
          const auto bad = on_device(std::vector<std::int32_t>{kNoBadRow});
          // A row with a value that is not finite is named; what is quantised for it means nothing.
          const std::size_t spoilt = values == Values::kNormal && w == 16 ? 7 : w;
          if (spoilt < w) {
            o.host[spoilt * width + 3] = std::numeric_limits<float>::quiet_NaN();
            std::vector<float> again = o.host;
            again.resize(o.card.size(), kGuard);
            o.card.upload(again.data());
          }

          GdnResult r;
          r.dim = s.dim, r.norm = norm.data(), r.eps = kEps;
          r.o = Rows(o.host.data(), w, width), r.z = ConstRows(z.data(), w, width);
          if (quantised) r.q = {codes.data(), scales.data(), sums.data(), w, width};
          r.k = ConstRows(k.data(), w, keys), r.decay = ConstRows(decay.data(), w, n);
          if (log) r.log_k = log_k.host.data(), r.log_decay = log_decay.host.data();
          const std::int64_t expected_bad = ReferenceOps().gdn_result(r);

          gpu::DeviceGdnResult card;
          card.dim = s.dim, card.norm = d_norm.get(), card.eps = kEps;
          card.o = {o.card.get(), w, width}, card.z = {d_z.get(), w, width};
          if (quantised) card.q_codes = d_codes.get(), card.q_scales = d_scales.get(), card.q_sums = d_sums.get();
          card.bad = bad.get();
          card.k = {d_k.get(), w, keys}, card.decay = {d_decay.get(), w, n};
          if (log) card.log_k = log_k.card.get(), card.log_decay = log_decay.card.get();
          gpu::gdn_result(card, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          const std::string what =
              fmt::format("{} heads of {}, {} rows, {}, kind {}", s.value_heads, s.dim, w, values_name(values), kind);
          ASSERT_EQ(o.difference(width), "") << what;
          ASSERT_EQ(log_k.difference(keys), "") << "keys, " << what;
          ASSERT_EQ(log_decay.difference(n), "") << "decays, " << what;
          std::int32_t found_bad;
          bad.download(&found_bad);
          if (!quantised) {
            ASSERT_EQ(found_bad, kNoBadRow) << what;
            continue;
          }
          ASSERT_EQ(found_bad, expected_bad < 0 ? kNoBadRow : static_cast<std::int32_t>(expected_bad)) << what;
          std::vector<float> all_scales(d_scales.size());
          std::vector<std::int32_t> all_sums(d_sums.size());
          d_codes.download(found_codes.data());
          d_scales.download(all_scales.data());
          d_sums.download(all_sums.data());
          for (std::size_t row = 0; row < w; ++row) {
            if (row >= spoilt) break;  // the reference stops there
            for (std::size_t c = 0; c < width; ++c)
              ASSERT_EQ(found_codes[row * width + c], codes[row * width + c]) << what << ", " << row << ", " << c;
            for (std::size_t b = 0; b < width / 32; ++b)
              ASSERT_TRUE(same_bits(all_scales[row * width / 32 + b], scales[row * width / 32 + b]))
                  << what << ", " << row << ", block " << b;
            for (std::size_t b = 0; b < width / 16; ++b)
              ASSERT_EQ(all_sums[row * width / 16 + b], sums[row * width / 16 + b]) << what << ", " << row << ", " << b;
          }
        }
}

struct AttentionShape {
  std::size_t heads, kv_heads, dim, half;
};

TEST_F(Fused, AttentionInput) {
  Random random(97);
  for (const AttentionShape& s : {AttentionShape{24, 2, 256, 32}, {4, 1, 64, 8}, {3, 3, 40, 20}, {2, 1, 33, 0}})
    for (const std::size_t w : {1UL, 3UL, 16UL})
      for (const KvType type : {KvType::kF16, KvType::kF32})
        for (const Values values : {Values::kNormal, Values::kDenormal, Values::kMixed}) {
          const std::size_t position = 5, capacity = position + w, width = s.kv_heads * s.dim, stride = 2 * s.dim;
          const auto q = drawn(random, w * s.heads * stride, values), k = drawn(random, w * width, values),
                     v = drawn(random, w * width, values), q_norm = drawn(random, s.dim), k_norm = drawn(random, s.dim);
          const auto cos = drawn(random, w * s.half + 1), sin = drawn(random, w * s.half + 1);
          std::vector<float> k_rot(w * width);
          Changed q_rot(drawn(random, w * s.heads * s.dim));
          const std::size_t bytes = capacity * width * (type == KvType::kF16 ? 2 : 4);
          std::vector<std::uint8_t> keys(bytes, 0xA5), values_kept(bytes, 0xA5);
          const std::vector<std::uint8_t> guards(bytes + 64, 0xA5);
          const auto d_keys = on_device(guards), d_values = on_device(guards);
          const auto d_q = on_device(q), d_k = on_device(k), d_v = on_device(v), d_qn = on_device(q_norm),
                     d_kn = on_device(k_norm), d_cos = on_device(cos), d_sin = on_device(sin);
          const auto d_position = on_device(std::vector<std::int32_t>{static_cast<std::int32_t>(position)});

          AttentionInput in;
          in.heads = s.heads, in.head_stride = stride, in.dim = s.dim;
          in.q = ConstRows(q.data(), w, s.heads * stride), in.k = ConstRows(k.data(), w, width);
          in.v = ConstRows(v.data(), w, width);
          in.q_norm = q_norm.data(), in.k_norm = k_norm.data(), in.eps = kEps;
          in.rope = {ConstRows(cos.data(), w, s.half), ConstRows(sin.data(), w, s.half)};
          in.kv = {type, keys.data(), values_kept.data(), s.kv_heads, s.dim, capacity};
          in.position = position;
          in.q_rot = Rows(q_rot.host.data(), w, s.heads * s.dim), in.k_rot = Rows(k_rot.data(), w, width);
          ReferenceOps().attention_input(in);

          gpu::DeviceAttentionInput card;
          card.heads = s.heads, card.head_stride = stride;
          card.q = {d_q.get(), w, s.heads * stride}, card.k = {d_k.get(), w, width}, card.v = {d_v.get(), w, width};
          card.q_norm = d_qn.get(), card.k_norm = d_kn.get(), card.eps = kEps;
          card.rope = {d_cos.get(), d_sin.get(), s.half, nullptr};
          card.kv = {type == KvType::kF16, d_keys.get(), d_values.get(), s.kv_heads, s.dim, capacity};
          card.position = d_position.get();
          card.q_rot = {q_rot.card.get(), w, s.heads * s.dim};
          gpu::attention_input(card, nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          const std::string what = fmt::format("{} + {} heads of {}, {} rows, {}, {}", s.heads, s.kv_heads, s.dim, w,
                                               type == KvType::kF16 ? "f16" : "f32", values_name(values));
          ASSERT_EQ(q_rot.difference(s.dim), "") << what;
          std::vector<std::uint8_t> found(guards.size());
          keys.resize(guards.size(), 0xA5), values_kept.resize(guards.size(), 0xA5);
          d_keys.download(found.data());
          ASSERT_TRUE(found == keys) << "keys, " << what;
          d_values.download(found.data());
          ASSERT_TRUE(found == values_kept) << "values, " << what;
        }
}

// Rows of the crew are waited for, where one missed, and read where they are, in page-locked memory.
TEST_F(Fused, CombineWithTheCrewsRows) {
  Random random(98);
  constexpr std::size_t kUsed = 12, kCols = 300;
  constexpr std::uint32_t kFirst = 0xFFFFFFFEU, kIndex = 5;  // their sum wraps
  // Without misses first: a kernel that waits must find the next one loaded.
  for (const bool missed : {false, true})
    for (const std::size_t w : {1UL, 4UL, 16UL}) {
      const std::size_t n = w * kUsed;
      std::vector<std::int32_t> expert(n), miss(n);
      std::vector<float> y = drawn(random, n * kCols), card_y = y, weight = drawn(random, n);
      const auto logit = drawn(random, w), shared = drawn(random, w * kCols);
      Shared<float> crew(n * kCols, kGuard);
      Shared<std::uint32_t> answer(1, kFirst + kIndex - 1);
      std::vector<float> late(n * kCols, kGuard);
      std::int32_t misses = 0;
      for (std::size_t i = 0; i < n; ++i) {
        expert[i] = i > 0 && random.below(6) == 0 ? -1 : static_cast<std::int32_t>(i);
        const bool missing = missed && (i == 0 || (expert[i] >= 0 && random.below(3) == 0));
        miss[i] = missing ? expert[i] : -1;
        if (!missing) continue;
        ++misses;
        std::copy_n(y.begin() + static_cast<std::ptrdiff_t>(i * kCols), kCols, late.data() + i * kCols);
        std::fill_n(card_y.begin() + static_cast<std::ptrdiff_t>(i * kCols), kCols, kGuard);
      }
      Changed out(std::vector<float>(w * kCols, kGuard));
      ReferenceOps().combine({expert.data(), weight.data(), w, kUsed}, ConstRows(y.data(), n, kCols),
                             ConstRows(logit.data(), w, 1), ConstRows(shared.data(), w, kCols),
                             Rows(out.host.data(), w, kCols));
      const auto d_expert = on_device(expert), d_miss = on_device(miss),
                 d_misses = on_device(std::vector<std::int32_t>{misses});
      const auto d_y = on_device(card_y), d_weight = on_device(weight), d_logit = on_device(logit),
                 d_shared = on_device(shared);
      const auto d_first = on_device(std::vector<std::uint32_t>{kFirst});
      gpu::MeetingMemory memory;
      memory.answer = answer.get(), memory.y = crew.get();
      gpu::await({memory, kIndex, d_first.get(), d_miss.get(), d_misses.get(), w, kUsed}, nullptr);
      gpu::combine(d_expert.get(), d_weight.get(), kUsed, {d_y.get(), n, kCols}, {d_logit.get(), w, 1},
                   {d_shared.get(), w, kCols}, {out.card.get(), w, kCols}, nullptr, {d_miss.get(), crew.get()});
      if (missed) {  // nobody answers without one
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::copy(late.begin(), late.end(), crew.get());
        std::atomic_ref<std::uint32_t>(answer[0]).store(kFirst + kIndex, std::memory_order_release);
      }
      CUDA_CHECK(cudaDeviceSynchronize());
      EXPECT_EQ(out.difference(kCols), "") << w << " rows";
    }
}

// What the crew sees of a meeting.
struct CrewSide {
  Shared<std::uint32_t> doorbell{1, 3};
  Shared<std::int32_t> count, miss, s;
  Shared<std::int8_t> q;
  Shared<float> d;
  static constexpr std::int32_t kWord = -77;
  static constexpr std::int8_t kByte = 0x5A;

  CrewSide(std::size_t meetings, std::size_t pairs, std::size_t values)
      : count(meetings, kWord),
        miss(pairs + 1, kWord),
        s(values / 16 + 1, kWord),
        q(values + 1, kByte),
        d(values / 32 + 1, kGuard) {}
  gpu::MeetingMemory memory() {
    return {doorbell.get(), nullptr, count.get(), miss.get(), q.get(), d.get(), s.get(), nullptr};
  }
};

// A router of drawn weights; `equal`: of three different rows, so that many logits are equal.
struct RouterCase {
  std::size_t experts, rows, used, cols;
  bool equal = false;
  gpu::FloatType type = gpu::FloatType::kF32;
};

// The products and routes against ReferenceOps; split, jobs and what the crew is told against loops.
void check_router(const RouterCase& c, Random& random) {
  const auto [experts, rows, used, cols, equal, type] = c;
  const std::size_t n = rows * used;
  const std::string what = fmt::format("{} of {} experts, {} rows of {}, type {}{}", used, experts, rows, cols,
                                       static_cast<int>(type), equal ? ", equal" : "");
  // Weights that every type holds exactly.
  std::vector<float> weights = drawn(random, experts * cols), other_weights = drawn(random, cols);
  const auto rounded = [](float v) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) & 0xFFFF0000U); };
  for (auto* list : {&weights, &other_weights})
    for (float& v : *list) v = type == gpu::FloatType::kF32 ? v : rounded(v);
  if (equal)
    for (std::size_t e = 3; e < experts; ++e)
      std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(random.below(3) * cols), cols,
                  weights.begin() + static_cast<std::ptrdiff_t>(e * cols));
  const auto x = drawn(random, rows * cols);
  const auto view = [&](const std::vector<float>& w, std::size_t count) {
    WeightView out;
    out.type = DType::F32, out.data = reinterpret_cast<const std::uint8_t*>(w.data()), out.rows = count,
    out.cols = cols, out.scale = 1.0F;
    return out;
  };
  Changed logits(std::vector<float>(rows * experts, kGuard)), other(std::vector<float>(rows, kGuard));
  const Activation a{ConstRows(x.data(), rows, cols), {}};
  ReferenceOps().matmul(view(weights, experts), a, Rows(logits.host.data(), rows, experts));
  ReferenceOps().matmul(view(other_weights, 1), a, Rows(other.host.data(), rows, 1));
  std::vector<std::int32_t> expert(n);
  std::vector<float> weight(n);
  ASSERT_EQ(
      ReferenceOps().route(ConstRows(logits.host.data(), rows, experts), {expert.data(), weight.data(), rows, used}),
      -1);
  std::vector<const std::uint8_t*> slots(experts);
  for (std::size_t e = 0; e < experts; ++e)
    if (random.below(4) != 0) slots[e] = reinterpret_cast<const std::uint8_t*>(0x1000 * (e + 1));

  const auto as_type = [&](const std::vector<float>& w) {
    std::vector<std::uint16_t> half(w.size());
    for (std::size_t i = 0; i < w.size(); ++i)
      half[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(w[i]) >> 16);
    return half;
  };
  const auto d_weights = on_device(weights), d_other = on_device(other_weights), d_x = on_device(x);
  const auto d_half = on_device(as_type(weights)), d_other_half = on_device(as_type(other_weights));
  const bool wide = type == gpu::FloatType::kF32;
  const auto d_slots = on_device(slots);
  const std::vector<std::int32_t> guards(n + 3, -77);
  const auto d_expert = on_device(guards), d_hit = on_device(guards), d_miss = on_device(guards),
             d_bad_pair = on_device(guards);
  const auto d_weight = on_device(std::vector<float>(n + 3, kGuard));
  const auto d_count = on_device(std::vector<std::int32_t>{-1, -77}),
             d_bad = on_device(std::vector<std::int32_t>{kNoBadRow});
  const auto d_arrived = on_device(std::vector<std::uint32_t>{0, 99});
  Shared<std::int32_t> log(n + 3, -77);
  DeviceBuffer<ExpertJob> d_jobs(n);
  std::vector<std::int8_t> q(rows * cols);
  std::vector<float> d(rows * cols / 32);
  std::vector<std::int32_t> s(rows * cols / 16);
  for (auto& v : q) v = static_cast<std::int8_t>(random.below(255));
  for (auto& v : d) v = draw(random, Values::kNormal);
  for (auto& v : s) v = static_cast<std::int32_t>(random.below(4000));
  const auto d_q = on_device(q);
  const auto d_d = on_device(d);
  const auto d_s = on_device(s), d_first = on_device(std::vector<std::int32_t>{40}),
             d_misses = on_device(std::vector<std::int32_t>{-5, -77});
  constexpr std::uint32_t kIndex = 2;

  for (const bool meets : {true, false}) {
    CrewSide crew(4, n, rows * cols);
    gpu::RouterArgs args;
    args.type = type;
    args.router = {wide ? static_cast<const void*>(d_weights.get()) : d_half.get(),
                   experts,
                   1.0F,
                   {logits.card.get(), rows, experts}};
    args.other = {
        wide ? static_cast<const void*>(d_other.get()) : d_other_half.get(), 1, 1.0F, {other.card.get(), rows, 1}};
    args.x = {d_x.get(), rows, cols};
    args.used = used, args.slots = d_slots.get();
    args.expert = d_expert.get(), args.weight = d_weight.get(), args.bad_row = d_bad.get();
    args.hit = d_hit.get(), args.miss = d_miss.get(), args.log = log.get();
    args.jobs = d_jobs.get(), args.job_count = d_count.get(), args.bad_pair = d_bad_pair.get();
    args.arrived = d_arrived.get();
    if (meets) {
      args.meeting = {crew.memory(), kIndex,         reinterpret_cast<const std::uint32_t*>(d_first.get()),
                      d_miss.get(),  d_misses.get(), rows,
                      used};
      args.quantized = {d_q.get(), d_d.get(), d_s.get(), cols};
    }
    gpu::router(args, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());

    const auto fetch = [](const auto& buffer) {
      std::vector<std::int32_t> values(buffer.size());
      buffer.download(values.data());
      return values;
    };
    const auto with_guards = [&](std::vector<std::int32_t> values) {
      values.resize(n + 3, -77);
      return values;
    };
    ASSERT_EQ(logits.difference(experts), "") << what;
    ASSERT_EQ(other.difference(1), "") << what;
    std::vector<float> found_weight(n + 3);
    d_weight.download(found_weight.data());
    ASSERT_EQ(first_difference(weight.data(), 1, n, found_weight.data(), n + 3, kGuard), "") << what;
    ASSERT_EQ(fetch(d_expert), with_guards(expert)) << what;
    ASSERT_EQ(log.values(), with_guards(expert)) << what;
    ASSERT_EQ(fetch(d_bad_pair), with_guards(std::vector<std::int32_t>(n, 0))) << what;
    ASSERT_EQ(fetch(d_bad)[0], kNoBadRow) << what;
    std::vector<std::uint32_t> arrived(2);
    d_arrived.download(arrived.data());
    ASSERT_EQ(arrived, (std::vector<std::uint32_t>{0, 99})) << what;
    std::vector<std::int32_t> hit, miss;
    std::vector<ExpertJob> jobs;
    std::int32_t misses = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint8_t* blob = slots[static_cast<std::size_t>(expert[i])];
      hit.push_back(blob != nullptr ? expert[i] : -1);
      miss.push_back(blob != nullptr ? -1 : expert[i]);
      if (blob == nullptr) {
        ++misses;
        continue;
      }
      ExpertJob* job = nullptr;
      for (ExpertJob& listed : jobs)
        if (listed.expert == expert[i]) job = &listed;
      if (job == nullptr || job->count == pairs_per_job(rows)) {
        jobs.push_back({blob, expert[i], 0, {}, {}});
        job = &jobs.back();
      }
      job->row[job->count] = static_cast<std::int32_t>(i / used);
      job->pair[job->count++] = static_cast<std::int32_t>(i);
    }
    ASSERT_EQ(fetch(d_hit), with_guards(hit)) << what;
    ASSERT_EQ(fetch(d_miss), with_guards(miss)) << what;
    ASSERT_EQ(fetch(d_count)[0], static_cast<std::int32_t>(jobs.size())) << what;
    std::vector<ExpertJob> found(n);
    d_jobs.download(found.data());
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      ASSERT_EQ(found[j].blob, jobs[j].blob) << what << ", job " << j;
      ASSERT_EQ(found[j].expert, jobs[j].expert) << what << ", job " << j;
      ASSERT_EQ(found[j].count, jobs[j].count) << what << ", job " << j;
      for (int k = 0; k < jobs[j].count; ++k) {
        ASSERT_EQ(found[j].pair[k], jobs[j].pair[k]) << what << ", job " << j;
        ASSERT_EQ(found[j].row[k], jobs[j].row[k]) << what << ", job " << j;
      }
    }
    const auto expected = [&](auto values, auto guard) {
      if (!meets) std::fill(values.begin(), values.end(), guard);
      values.push_back(guard);
      return values;
    };
    if (meets) {
      ASSERT_EQ(fetch(d_misses), (std::vector<std::int32_t>{misses, -77})) << what;
    }
    ASSERT_EQ(crew.doorbell[0], meets ? 42U : 3U) << what;
    std::vector<std::int32_t> counts(4, CrewSide::kWord);
    if (meets) counts[kIndex] = misses;
    ASSERT_EQ(crew.count.values(), counts) << what;
    ASSERT_EQ(crew.miss.values(), expected(miss, CrewSide::kWord)) << what;
    ASSERT_EQ(crew.q.values(), expected(q, CrewSide::kByte)) << what;
    ASSERT_EQ(crew.d.values(), expected(d, kGuard)) << what;
    ASSERT_EQ(crew.s.values(), expected(s, CrewSide::kWord)) << what;
  }
}

TEST_F(Fused, Router) {
  Random random(95);
  for (const std::size_t experts : {512UL, 64UL, 24UL})
    for (std::size_t rows = 1; rows <= gpu::kRouterRows; ++rows)
      for (const std::size_t used : {1UL, 4UL, 10UL, 16UL})
        for (const bool equal : {false, true}) check_router({experts, rows, used, 64, equal}, random);
}
// Columns that are no multiple of a segment, several segments a warp, the real model's.
TEST_F(Fused, RouterOfOtherSizes) {
  Random random(97);
  for (const std::size_t cols : {32UL, 96UL, 288UL, 2560UL, 5120UL, 12288UL, 16384UL})
    for (const std::size_t rows : {1UL, 2UL, 3UL, 4UL, 5UL, 9UL, 16UL})
      for (const gpu::FloatType type : {gpu::FloatType::kF32, gpu::FloatType::kBf16})
        check_router({cols == 2560 ? 512UL : 40UL, rows, 10, cols, false, type}, random);
}

// A NaN is reported with the first such row; the other rows are routed.
TEST_F(Fused, RouterNamesARowThatIsNoNumber) {
  constexpr std::size_t kExperts = 64, kRows = 8, kUsed = 4, kCols = 64;
  Random random(96);
  const auto weights = drawn(random, kExperts * kCols);
  auto x = drawn(random, kRows * kCols);
  WeightView view;
  view.type = DType::F32, view.data = reinterpret_cast<const std::uint8_t*>(weights.data()), view.rows = kExperts,
  view.cols = kCols, view.scale = 1.0F;
  std::vector<float> logits(kRows * kExperts), weight(kRows * kUsed);
  std::vector<std::int32_t> expert(kRows * kUsed), found(kRows * kUsed);
  ReferenceOps().matmul(view, {ConstRows(x.data(), kRows, kCols), {}}, Rows(logits.data(), kRows, kExperts));
  ReferenceOps().route(ConstRows(logits.data(), kRows, kExperts), {expert.data(), weight.data(), kRows, kUsed});
  for (const std::size_t row : {3UL, 6UL}) x[row * kCols + 40] = std::numeric_limits<float>::quiet_NaN();
  const auto d_weights = on_device(weights), d_x = on_device(x);
  const auto d_slots = on_device(std::vector<const std::uint8_t*>(kExperts));
  const std::vector<std::int32_t> zeros(kRows * kUsed);
  const auto d_expert = on_device(zeros), d_hit = on_device(zeros), d_miss = on_device(zeros), d_log = on_device(zeros),
             d_bad_pair = on_device(zeros), d_count = on_device(zeros),
             d_bad = on_device(std::vector<std::int32_t>{kNoBadRow});
  const auto d_arrived = on_device(std::vector<std::uint32_t>{0});
  DeviceBuffer<float> d_weight(kRows * kUsed), d_logits(kRows * kExperts);
  DeviceBuffer<ExpertJob> d_jobs(kRows * kUsed);
  gpu::RouterArgs args;
  args.router = {d_weights.get(), kExperts, 1.0F, {d_logits.get(), kRows, kExperts}};
  args.x = {d_x.get(), kRows, kCols};
  args.used = kUsed, args.slots = d_slots.get();
  args.expert = d_expert.get(), args.weight = d_weight.get(), args.bad_row = d_bad.get();
  args.hit = d_hit.get(), args.miss = d_miss.get(), args.log = d_log.get();
  args.jobs = d_jobs.get(), args.job_count = d_count.get(), args.bad_pair = d_bad_pair.get();
  args.arrived = d_arrived.get();
  gpu::router(args, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  std::int32_t bad;
  d_bad.download(&bad);
  EXPECT_EQ(bad, 3);
  d_expert.download(found.data());
  for (std::size_t i = 0; i < found.size(); ++i)
    if (i / kUsed != 3 && i / kUsed != 6) {
      EXPECT_EQ(found[i], expert[i]) << i;
    }
}

}  // namespace
}  // namespace tandem::testing
