// The expert FFN on the card: the list of jobs and the split of routes against a plain loop, the results against
// ReferenceOps, bit for bit.
#include "gpu/kernels/expert_ffn.h"

#include <gtest/gtest.h>

#include <set>

#include "gpu/cuda_check.h"
#include "gpu/kernels/expert_cut.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/tile_gemm.h"
#include "gpu/kernels/tile_kernel_table.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

using GpuExperts = GpuTest;

// ---- routes ---------------------------------------------------------------------------------------------------------

struct RouteCase {
  std::size_t rows, used, experts;
  std::vector<std::int32_t> expert;
  std::vector<const std::uint8_t*> slots;  // addresses that nothing reads

  RouteCase(std::size_t rows_, std::size_t used_, std::size_t experts_, Random& random, bool repeats)
      : rows(rows_), used(used_), experts(experts_), expert(rows_ * used_), slots(experts_) {
    for (std::size_t e = 0; e < experts; ++e)
      if (random.below(3) != 0) slots[e] = reinterpret_cast<const std::uint8_t*>(0x1000 * (e + 1));
    for (std::size_t i = 0; i < expert.size(); ++i) {
      expert[i] = static_cast<std::int32_t>(random.below(repeats ? std::min<std::size_t>(experts, 3) : experts));
      if (random.below(8) == 0) expert[i] = -1;
    }
  }
  bool hit(std::size_t i) const { return expert[i] >= 0 && slots[static_cast<std::size_t>(expert[i])] != nullptr; }
};

TEST_F(GpuExperts, EveryHitIsInOneJob) {
  Random random(31);
  for (const std::size_t rows : {1UL, 2UL, 4UL, 7UL, 16UL, 64UL})
    for (const std::size_t used : {1UL, 4UL, 10UL, 16UL})
      for (const bool repeats : {false, true})
        for (const int per_job : {1, 2, 4}) {
          const RouteCase c(rows, used, 64, random, repeats);
          const std::size_t n = rows * used;
          const auto expert = on_device(c.expert);
          const auto slots = on_device(c.slots);
          DeviceBuffer<ExpertJob> jobs(n);
          const auto count = on_device(std::vector<std::int32_t>{-1}), bad = on_device(std::vector<std::int32_t>(n, 7));
          launch_expert_jobs({expert.get(), rows, used, slots.get()}, per_job, jobs.get(), count.get(), bad.get(),
                             nullptr);
          CUDA_CHECK(cudaDeviceSynchronize());
          std::vector<ExpertJob> list(n);
          std::vector<std::int32_t> flags(n);
          std::int32_t found;
          jobs.download(list.data());
          bad.download(flags.data());
          count.download(&found);
          EXPECT_EQ(flags, std::vector<std::int32_t>(n, 0));
          // What a loop makes of it: each pair joins the last job of its expert, if that has room.
          std::vector<ExpertJob> expected;
          for (std::size_t i = 0; i < n; ++i) {
            if (!c.hit(i)) continue;
            ExpertJob* job = nullptr;
            for (ExpertJob& other : expected)
              if (other.expert == c.expert[i]) job = &other;
            if (job == nullptr || job->count == per_job) {
              expected.push_back({c.slots[static_cast<std::size_t>(c.expert[i])], c.expert[i], 0, {}, {}});
              job = &expected.back();
            }
            job->pair[job->count++] = static_cast<std::int32_t>(i);
          }
          ASSERT_EQ(static_cast<std::size_t>(found), expected.size()) << rows << " x " << used << ", " << per_job;
          for (std::size_t j = 0; j < expected.size(); ++j) {
            ASSERT_EQ(list[j].expert, expected[j].expert) << j;
            ASSERT_EQ(list[j].blob, expected[j].blob) << j;
            ASSERT_EQ(list[j].count, expected[j].count) << j;
            for (int k = 0; k < expected[j].count; ++k) {
              ASSERT_EQ(list[j].pair[k], expected[j].pair[k]) << j;
              ASSERT_EQ(list[j].row[k], expected[j].pair[k] / static_cast<std::int32_t>(used)) << j;
            }
          }
        }
}

TEST_F(GpuExperts, PairsAreSorted) {
  Random random(38);
  for (const std::size_t experts : {1UL, 7UL, 512UL, 1024UL})
    for (const std::size_t pairs : {0UL, 1UL, 1000UL, 1024UL, 5000UL, 40960UL}) {
      std::vector<std::int32_t> expert(std::max<std::size_t>(1, pairs));
      for (auto& e : expert) e = static_cast<std::int32_t>(random.below(experts + 1)) - 1;
      const auto device = on_device(expert);
      const auto first = on_device(std::vector<std::int32_t>(experts + 1, -5));
      const auto order = on_device(std::vector<std::int32_t>(expert.size(), -5));
      launch_sort_pairs(device.get(), pairs, experts, {first.get(), order.get()}, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      std::vector<std::int32_t> from(experts + 1), list(expert.size());
      first.download(from.data());
      order.download(list.data());
      std::vector<std::set<std::int32_t>> expected(experts);
      for (std::size_t i = 0; i < pairs; ++i)
        if (expert[i] >= 0) expected[static_cast<std::size_t>(expert[i])].insert(static_cast<std::int32_t>(i));
      ASSERT_EQ(from[0], 0);
      for (std::size_t e = 0; e < experts; ++e) {
        ASSERT_EQ(static_cast<std::size_t>(from[e + 1] - from[e]), expected[e].size()) << e << " of " << experts;
        ASSERT_EQ(std::set<std::int32_t>(list.begin() + from[e], list.begin() + from[e + 1]), expected[e]) << e;
      }
      for (auto i = static_cast<std::size_t>(from[experts]); i < list.size(); ++i) ASSERT_EQ(list[i], -5) << i;
    }
}

// Every type in the shape of the model fits the shared memory of a block on an RTX 3090, with warps enough. No card
// needed.
TEST(ExpertCut, FitsTheSharedMemoryOfTheReferenceCard) {
  constexpr int kBytes = 99 * 1024;
  constexpr int kActivations[] = {kTileActivationBytes<1>, kTileActivationBytes<2>, kTileActivationBytes<4>};
  for (const DType type : kTileTypes)
    for (int index = 0; index < 3; ++index) {
      const TileKernels& kernels = tile_kernels(type);
      const int warp_bytes = 2 * kernels.pitch + kActivations[index];
      const auto fits = [&](int units) {
        const int rest = expert_rest(kernels.table_bytes, units, 1 << index);
        const int warps = expert_warps(units, kMaxExpertWarps, warp_bytes, rest, kBytes);
        EXPECT_LE(warps * warp_bytes + rest, kBytes) << dtype_name(type) << " " << units;
        return warps;
      };
      EXPECT_GE(fits(20), 7) << dtype_name(type) << " " << index;  // gate and up, 2,560 columns
      EXPECT_GE(fits(9), 5) << dtype_name(type) << " " << index;   // down, 640 columns
      EXPECT_GE(fits(12), 6) << dtype_name(type) << " " << index;
      EXPECT_EQ(warp_bytes % kCopyAlignment, 0) << dtype_name(type) << " " << index;
    }
}

TEST(ExpertCut, Warps) {
  EXPECT_EQ(expert_warps(20, 10, 1000, 500, 100000), 10);
  EXPECT_EQ(expert_warps(9, 10, 1000, 500, 100000), 9);
  EXPECT_EQ(expert_warps(21, 10, 1000, 500, 100000), 7);  // three rounds
  EXPECT_EQ(expert_warps(20, 10, 1000, 500, 10499), 7);   // a byte short of ten: three rounds again
  EXPECT_EQ(expert_warps(20, 10, 1000, 500, 10500), 10);
  EXPECT_EQ(expert_warps(20, 10, 1000, 500, 1500), 1);
  EXPECT_EQ(expert_warps(20, 10, 1000, 500, 1499), 0);
  EXPECT_EQ(expert_warps(1, 10, 1000, 0, 1000), 1);
}

// ---- the FFN --------------------------------------------------------------------------------------------------------

struct BankShape {
  DType gate, up, down;
  std::size_t d, ff;
  bool scaled = false;
};
constexpr BankShape kBanks[] = {
    {DType::Q4_K, DType::Q4_K, DType::Q5_1, 512, 96},
    {DType::Q4_K, DType::Q4_K, DType::Q5_0, 2560, 640},
    {DType::IQ3_XXS, DType::IQ3_XXS, DType::IQ4_NL, 768, 160, true},
    {DType::IQ2_XXS, DType::Q6_K, DType::Q8_0, 256, 64},
    {DType::Q2_0, DType::Q2_0, DType::Q2_0, 192, 320},
    {DType::Q4_0, DType::Q8_0, DType::MXFP4, 96, 32, true},
    {DType::IQ1_S, DType::IQ1_S, DType::Q4_1, 1024, 288},
};

// A bank of experts, and those of them that are on the card.
struct Bank {
  static constexpr std::size_t kExperts = 7;
  Weights gate, up, down;
  std::vector<float> scales;
  ExpertBank bank;
  ExpertBlobLayout layout;
  DeviceBuffer<std::uint8_t> blobs;
  DeviceBuffer<float> device_scales;
  DeviceBuffer<const std::uint8_t*> slots;
  ExpertScales device;
  std::vector<bool> there;

  Bank(const BankShape& s, Random& random) {
    gate = block_weights(s.gate, kExperts * s.ff, s.d, Scales::kNormal, random);
    up = block_weights(s.up, kExperts * s.ff, s.d, Scales::kNormal, random);
    down = block_weights(s.down, kExperts * s.d, s.ff, Scales::kNormal, random);
    bank.gate = gate.view.slice(0, s.ff);
    bank.up = up.view.slice(0, s.ff);
    bank.down = down.view.slice(0, s.d);
    bank.gate_up_stride = bank.gate.bytes();
    bank.up_stride = bank.up.bytes();
    bank.down_stride = bank.down.bytes();
    bank.experts = kExperts;
    if (s.scaled) {
      for (std::size_t i = 0; i < 3 * kExperts; ++i) scales.push_back(random.uniform(0.5F, 2.0F));
      bank.gate_scale = scales.data();
      bank.up_scale = scales.data() + kExperts;
      bank.down_scale = scales.data() + 2 * kExperts;
      bank.gate.scale = 0.7F;
      bank.down.scale = 1.3F;
      device_scales = on_device(scales);
      device = {
          device_scales.get(), device_scales.get() + kExperts, device_scales.get() + 2 * kExperts, 0.7F, 1.0F, 1.3F};
    }
    layout = ExpertBlobLayout::of(bank);
    std::vector<std::uint8_t> host(kExperts * layout.bytes);
    std::vector<const std::uint8_t*> addresses(kExperts);
    blobs = DeviceBuffer<std::uint8_t>(host.size());
    there.resize(kExperts);
    for (std::size_t e = 0; e < kExperts; ++e) {
      there[e] = e != 2 && e != 5;
      pack_expert(bank, static_cast<int>(e), layout, host.data() + e * layout.bytes);
      if (there[e]) addresses[e] = blobs.get() + e * layout.bytes;
    }
    blobs.upload(host.data());
    slots = on_device(addresses);
  }
};

std::string label(const BankShape& s) {
  return fmt::format("{}, {}, {}; d {}, ff {}", dtype_name(s.gate), dtype_name(s.up), dtype_name(s.down), s.d, s.ff);
}

void expect_bank(const BankShape& shape, std::size_t rows, std::size_t used, Values values, Random& random,
                 bool repeats) {
  Bank bank(shape, random);
  QuantCase x(rows, shape.d, random, [&](std::size_t) { return values; });
  std::vector<std::int32_t> expert(rows * used), hits(rows * used);
  std::vector<float> weight(rows * used, 0.5F);
  for (std::size_t i = 0; i < expert.size(); ++i) {
    expert[i] = static_cast<std::int32_t>(repeats ? random.below(2) : (random.below(2) + 3 * i) % Bank::kExperts);
    if (random.below(9) == 0) expert[i] = -1;
    hits[i] = expert[i] >= 0 && bank.there[static_cast<std::size_t>(expert[i])] ? expert[i] : -1;
  }
  std::vector<float> expected(rows * used * shape.d, kGuard), found(expected);
  ReferenceOps().expert_ffn(bank.bank, {hits.data(), weight.data(), rows, used}, x.host(),
                            Rows(expected.data(), rows * used, shape.d));
  const auto device_expert = on_device(expert);
  // Less room than pairs: the rows are taken in groups.
  const std::size_t pairs = std::max(used, rows > 20 ? 160 / used * used : rows * used);
  DeviceBuffer<std::uint8_t> memory(expert_scratch_bytes(pairs, shape.ff));
  const ExpertScratch scratch = make_expert_scratch(memory.get(), pairs, shape.ff);
  for (const bool early : {false, true}) {
    const auto y = on_device(std::vector<float>(expected.size(), kGuard));
    CUDA_CHECK(cudaMemset(memory.get(), 0, memory.bytes()));  // a list that is read too early has no jobs
    set_early_starts(early);
    launch_expert_ffn(bank.layout, bank.device, {device_expert.get(), rows, used, bank.slots.get()}, x.device(),
                      y.get(), shape.d, scratch, nullptr);
    set_early_starts(false);
    CUDA_CHECK(cudaDeviceSynchronize());
    y.download(found.data());
    ASSERT_EQ(first_difference(expected.data(), rows * used, shape.d, found.data(), shape.d, kGuard), "")
        << label(shape) << "; " << rows << " rows, " << used << " used, " << values_name(values)
        << (repeats ? ", repeats" : "") << (early ? ", early starts" : "");
  }
}

TEST_F(GpuExperts, BankGivesTheBitsOfTheReference) {
  load_tile_kernels();
  Random random(33);
  for (const BankShape& shape : kBanks) {
    const bool large = shape.d > 2000;
    for (const std::size_t rows : {1UL, 2UL, 3UL, 4UL, 5UL, 8UL, 16UL, 40UL}) {
      if (large && rows > 5) continue;
      expect_bank(shape, rows, rows % 2 == 0 ? 4 : 3, Values::kNormal, random, false);
    }
    if (large) continue;
    for (const Values values : {Values::kTiny, Values::kDenormal, Values::kZero, Values::kMixed})
      expect_bank(shape, 3, 2, values, random, false);
    expect_bank(shape, 16, 3, Values::kNormal, random, true);  // 24 pairs of one expert
    expect_bank(shape, 2, 6, Values::kNormal, random, true);   // an expert several times in a row
  }
}

// Every type in both halves, jobs of one to four rows.
TEST_F(GpuExperts, EveryTypeGivesTheBitsOfTheReference) {
  load_tile_kernels();
  Random random(39);
  for (const DType type : kTileTypes) {
    const BankShape shape{type, type, type, 512, 256, type == DType::IQ4_XS};
    for (const std::size_t rows : {1UL, 2UL, 5UL})
      for (const bool repeats : {false, true}) expect_bank(shape, rows, 3, Values::kNormal, random, repeats);
  }
}

// More items than the card has room for blocks, so that every block takes several.
TEST_F(GpuExperts, BlocksTakeSeveralItems) {
  load_tile_kernels();
  Random random(40);
  for (const BankShape& shape : {BankShape{DType::IQ3_XXS, DType::IQ3_XXS, DType::IQ4_NL, 2560, 640},
                                 BankShape{DType::Q4_K, DType::Q5_K, DType::Q8_0, 2560, 512}})
    for (const bool repeats : {false, true}) expect_bank(shape, 16, 10, Values::kNormal, random, repeats);
}

// The pairs of a long pass, expert by expert in batches: those of the batch are written, others are left alone.
TEST_F(GpuExperts, BatchesGiveTheBitsOfTheReference) {
  load_tile_kernels();
  Random random(37);
  for (const BankShape& shape : kBanks) {
    if (shape.gate != shape.up) continue;
    BankShape plain = shape;
    plain.scaled = false;  // a scale per expert is not for long passes
    Bank bank(plain, random);
    bank.bank.gate.scale = 0.7F, bank.bank.up.scale = 1.1F, bank.bank.down.scale = 1.3F;
    ASSERT_TRUE(can_gemm_experts(bank.layout));
    const bool large = shape.d > 2000;
    for (const std::size_t rows : {1UL, 17UL, 70UL, 150UL}) {
      if (large && rows > 100) continue;
      const std::size_t used = 3, n = rows * used;
      QuantCase x(rows, shape.d, random, [](std::size_t row) {
        return row == 5 ? Values::kLarge : row == 9 ? Values::kMixed : Values::kNormal;
      });
      // Expert 6 by every row, 3 by most, the others by some.
      std::vector<std::int32_t> expert(n);
      for (std::size_t r = 0; r < rows; ++r) {
        expert[used * r] = 6;
        expert[used * r + 1] = random.below(4) == 0 ? -1 : 3;
        expert[used * r + 2] = static_cast<std::int32_t>(random.below(3));
      }
      std::vector<float> expected(n * shape.d, kGuard), found(expected), weight(n, 0.5F);
      std::vector<std::int32_t> done(n, -1);
      const auto device_expert = on_device(expert);
      const auto y = on_device(expected);
      DeviceBuffer<std::uint8_t> memory(gemm_scratch_bytes(n, shape.ff, Bank::kExperts));
      const GemmScratch scratch = make_gemm_scratch(memory.get(), n, shape.ff, Bank::kExperts);
      CUDA_CHECK(cudaMemset(scratch.bad, 0, n * sizeof(std::int32_t)));
      launch_sort_pairs(device_expert.get(), n, Bank::kExperts, scratch.sorted, nullptr);
      GemmExperts args;
      args.layout = &bank.layout;
      args.scale[0] = 0.7F, args.scale[1] = 1.1F, args.scale[2] = 1.3F;
      args.x = x.device();
      args.used = used;
      args.y = y.get();
      args.y_stride = shape.d;
      const std::vector<std::vector<std::int32_t>> batches = {{6, 0}, {}, {4, 1, 3}};  // 2 never, 4 has no pairs
      for (const std::vector<std::int32_t>& ids : batches) {
        ExpertBatch batch;
        for (const std::int32_t e : ids) {
          batch.expert[batch.count] = e;
          batch.blob[batch.count++] = bank.blobs.get() + static_cast<std::size_t>(e) * bank.layout.bytes;
        }
        launch_gemm_experts(args, batch, rows > 100 ? 500 : 1, scratch, nullptr);
        for (std::size_t i = 0; i < n; ++i)
          if (std::find(ids.begin(), ids.end(), expert[i]) != ids.end()) done[i] = expert[i];
        ReferenceOps().expert_ffn(bank.bank, {done.data(), weight.data(), rows, used}, x.host(),
                                  Rows(expected.data(), n, shape.d));
        CUDA_CHECK(cudaDeviceSynchronize());
        y.download(found.data());
        ASSERT_EQ(first_difference(expected.data(), n, shape.d, found.data(), shape.d, kGuard), "")
            << label(shape) << "; " << rows << " rows, " << ids.size() << " experts in the batch";
      }
    }
  }
}

TEST_F(GpuExperts, FfnGivesTheBitsOfTheReference) {
  load_tile_kernels();
  Random random(34);
  for (const BankShape& shape : kBanks) {
    Bank bank(shape, random);
    const ExpertWeights weights = bank.bank.expert(3);
    const PackedMatrix gate = pack_matrix(weights.gate, in_order()), up = pack_matrix(weights.up, in_order()),
                       down = pack_matrix(weights.down, in_order());
    DeviceBuffer<std::uint8_t> memory[3];
    const auto upload = [&memory](std::size_t i, const PackedMatrix& m) {
      memory[i] = DeviceBuffer<std::uint8_t>(m.bytes());
      memory[i].upload(m.data());
      return DeviceTiles{m.type, memory[i].get(), m.rows, m.cols, m.scale};
    };
    const DeviceTiles g = upload(0, gate), u = upload(1, up), d = upload(2, down);
    for (const std::size_t rows : {1UL, 2UL, 3UL, 6UL, 8UL, 9UL, 16UL, 40UL, 90UL}) {
      if (shape.d > 2000 && rows > 8 && rows < 90) continue;
      const std::size_t pairs = rows == 90 ? 90 : 16;
      QuantCase x(rows, shape.d, random, [](std::size_t) { return Values::kNormal; });
      std::vector<float> expected(rows * shape.d), found(rows * shape.d);
      ReferenceOps().ffn(weights, x.host(), Rows(expected.data(), rows, shape.d));
      DeviceBuffer<std::uint8_t> work(expert_scratch_bytes(pairs, shape.ff));
      DeviceBuffer<float> y(found.size());
      launch_ffn(g, u, d, x.device(), rows, y.get(), shape.d, make_expert_scratch(work.get(), pairs, shape.ff),
                 nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      y.download(found.data());
      ASSERT_EQ(first_difference(expected.data(), rows, shape.d, found.data(), shape.d, kGuard), "")
          << label(shape) << "; " << rows << " rows";
    }
  }
}

// A hidden value that overflows turns its row, and only its row, into NaN.
TEST_F(GpuExperts, AnOverflowStaysVisible) {
  load_tile_kernels();
  Random random(35);
  for (const BankShape& shape : {kBanks[0], kBanks[3]}) {
    Bank bank(shape, random);
    QuantCase x(3, shape.d, random, [](std::size_t row) { return row == 1 ? Values::kLarge : Values::kNormal; });
    const std::vector<std::int32_t> expert = {6, 6, 6};
    const auto device_expert = on_device(expert);
    DeviceBuffer<std::uint8_t> memory(expert_scratch_bytes(3, shape.ff));
    DeviceBuffer<float> y(3 * shape.d);
    launch_expert_ffn(bank.layout, bank.device, {device_expert.get(), 3, 1, bank.slots.get()}, x.device(), y.get(),
                      shape.d, make_expert_scratch(memory.get(), 3, shape.ff), nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    std::vector<float> found(3 * shape.d);
    y.download(found.data());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(std::isnan(found[i]), i / shape.d == 1) << label(shape) << ", " << i;
  }
}

// A captured launch holds for other routes and another set of experts on the card.
TEST_F(GpuExperts, AGraphHoldsForOtherRoutes) {
  load_tile_kernels();
  Random random(36);
  const BankShape& shape = kBanks[0];
  Bank bank(shape, random);
  constexpr std::size_t kRows = 4, kUsed = 3;
  QuantCase x(kRows, shape.d, random, [](std::size_t) { return Values::kNormal; });
  DeviceBuffer<std::uint8_t> memory(expert_scratch_bytes(kRows * kUsed, shape.ff));
  DeviceBuffer<std::int32_t> expert(kRows * kUsed);
  DeviceBuffer<float> y(kRows * kUsed * shape.d);
  cudaStream_t stream;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch_expert_ffn(bank.layout, bank.device, {expert.get(), kRows, kUsed, bank.slots.get()}, x.device(), y.get(),
                    shape.d, make_expert_scratch(memory.get(), kRows * kUsed, shape.ff), stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 5; ++round) {
    std::vector<std::int32_t> routes(kRows * kUsed), hits;
    for (auto& e : routes) e = static_cast<std::int32_t>(random.below(Bank::kExperts));
    for (const std::int32_t e : routes) hits.push_back(bank.there[static_cast<std::size_t>(e)] ? e : -1);
    std::vector<float> expected(kRows * kUsed * shape.d, kGuard), found(expected), weight(kRows * kUsed, 1.0F);
    ReferenceOps().expert_ffn(bank.bank, {hits.data(), weight.data(), kRows, kUsed}, x.host(),
                              Rows(expected.data(), kRows * kUsed, shape.d));
    expert.upload(routes.data());
    y.upload(found.data());
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    y.download(found.data());
    ASSERT_EQ(first_difference(expected.data(), kRows * kUsed, shape.d, found.data(), shape.d, kGuard), "")
        << "round " << round;
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace tandem::testing
