// Experts named for the next layer (gpu/kernels/name_experts.h) against ReferenceOps and a loop; and the router's use
// of those that were fetched.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "gpu/cuda_check.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/router.h"
#include "tests/gpu/tile_cases.h"

namespace tandem::testing {
namespace {

using NameExperts = GpuTest;
constexpr std::int32_t kWord = -77;

WeightView float_view(const std::vector<float>& weights, std::size_t rows, std::size_t cols) {
  WeightView view;
  view.type = DType::F32, view.data = reinterpret_cast<const std::uint8_t*>(weights.data()), view.rows = rows,
  view.cols = cols, view.scale = 1.0F;
  return view;
}

struct NamesCase {
  std::size_t experts, rows, used, cols;
  unsigned off;        // one expert in so many is off the card; 0: none
  bool equal = false;  // logits
  int nan_row = -1;
};

void check_names(const NamesCase& c, Random& random) {
  const auto [experts, rows, used, cols, off, equal, nan_row] = c;
  const std::size_t n = rows * used;
  const std::string what = fmt::format("{} of {} experts, {} rows of {}, one of {} off the card{}", used, experts, rows,
                                       cols, off, equal ? ", equal" : "");
  std::vector<float> weights = drawn(random, experts * cols);
  if (equal)
    for (std::size_t e = 3; e < experts; ++e)
      std::copy_n(weights.begin() + static_cast<std::ptrdiff_t>(random.below(3) * cols), cols,
                  weights.begin() + static_cast<std::ptrdiff_t>(e * cols));
  auto x = drawn(random, rows * cols);
  if (nan_row >= 0) x[static_cast<std::size_t>(nan_row) * cols + 5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<const std::uint8_t*> slots(experts);
  for (std::size_t e = 0; e < experts; ++e)
    if (off == 0 || random.below(off) != 0) slots[e] = reinterpret_cast<const std::uint8_t*>(0x1000 * (e + 1));

  // Sums of weights in the order of the pairs, each expert where it is met first; then the largest, the first of
  // equals.
  std::vector<float> sum(n);
  std::vector<std::int32_t> expert(n, -1);
  for (std::size_t r = 0; r < rows; ++r) {
    if (static_cast<int>(r) == nan_row) continue;
    std::vector<float> logits(experts), weight(used);
    const Activation a{ConstRows(x.data() + r * cols, 1, cols), {}};
    ReferenceOps().matmul(float_view(weights, experts, cols), a, Rows(logits.data(), 1, experts));
    ReferenceOps().route(ConstRows(logits.data(), 1, experts), {expert.data() + r * used, weight.data(), 1, used});
    for (std::size_t k = 0; k < used; ++k) {
      const std::int32_t e = expert[r * used + k];
      if (slots[static_cast<std::size_t>(e)] != nullptr) continue;
      sum[static_cast<std::size_t>(std::find(expert.begin(), expert.end(), e) - expert.begin())] += weight[k];
    }
  }
  std::vector<std::int32_t> names;
  while (names.size() < gpu::kNames) {
    const auto best = std::max_element(sum.begin(), sum.end());
    names.push_back(*best > 0 ? expert[static_cast<std::size_t>(best - sum.begin())] : -1);
    *best = 0;
  }
  names.push_back(kWord);

  const auto d_weights = on_device(weights), d_x = on_device(x);
  const auto d_slots = on_device(slots);
  DeviceBuffer<float> d_logits(rows * experts);
  const auto d_list = on_device(std::vector<std::int32_t>(gpu::kNames + 1, kWord)),
             d_bad = on_device(std::vector<std::int32_t>{0});
  const auto d_first = on_device(std::vector<std::uint32_t>{40}),
             d_arrived = on_device(std::vector<std::uint32_t>{0, 99});
  Shared<std::int32_t> told(gpu::kNames + 1, kWord);
  Shared<std::uint32_t> bell(1, 3);
  gpu::NameArgs args;
  args.router = {d_weights.get(), experts, 1.0F, {d_logits.get(), rows, experts}};
  args.x = {d_x.get(), rows, cols};
  args.used = used, args.slots = d_slots.get();
  args.list = d_list.get(), args.told = told.get(), args.bell = bell.get();
  args.index = 7, args.first_number = d_first.get();
  args.bad_row = d_bad.get(), args.arrived = d_arrived.get();
  gpu::name_experts(args, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());

  ASSERT_EQ(told.values(), names) << what;
  std::vector<std::int32_t> list(gpu::kNames + 1);
  d_list.download(list.data());
  ASSERT_EQ(list, names) << what;
  ASSERT_EQ(bell[0], 47U) << what;
  std::vector<std::uint32_t> arrived(2);
  d_arrived.download(arrived.data());
  ASSERT_EQ(arrived, (std::vector<std::uint32_t>{0, 99})) << what;
}

TEST_F(NameExperts, TheBestThatAreOffTheCard) {
  Random random(98);
  for (const std::size_t experts : {512UL, 64UL, 24UL})
    for (std::size_t rows = 1; rows <= gpu::kRouterRows; ++rows)
      for (const std::size_t used : {1UL, 4UL, 10UL, 16UL})
        for (const unsigned off : {0U, 1U, 2U, 10U})
          for (const bool equal : {false, true}) check_names({experts, rows, used, 64, off, equal}, random);
}
TEST_F(NameExperts, OfOtherSizes) {
  Random random(99);
  for (const std::size_t cols : {32UL, 288UL, 2560UL, 5120UL, 16384UL})
    for (const std::size_t rows : {1UL, 2UL, 3UL, 4UL, 5UL, 16UL})
      check_names({cols == 2560 ? 512UL : 40UL, rows, 10, cols, 2}, random);
}
TEST_F(NameExperts, ARowThatIsNoNumberNamesNone) {
  Random random(100);
  for (const std::size_t rows : {1UL, 2UL, 8UL}) check_names({64, rows, 4, 64, 2, false, 0}, random);
}

// What a router's kernel leaves behind.
struct Routed {
  std::vector<std::int32_t> hit, miss, told;
  std::vector<ExpertJob> jobs;
  std::int32_t misses = 0;
};
struct RouterRun {
  std::size_t experts, rows, used, cols;
  DeviceBuffer<float> weights, x;
  Routed run(const std::vector<const std::uint8_t*>& slots, const gpu::FetchedExperts& fetched) const {
    const std::size_t n = rows * used;
    const std::vector<std::int32_t> guards(n, kWord);
    const auto d_slots = on_device(slots);
    const auto expert = on_device(guards), hit = on_device(guards), miss = on_device(guards),
               bad_pair = on_device(guards), count = on_device(std::vector<std::int32_t>{-1}),
               bad = on_device(std::vector<std::int32_t>{kNoBadRow}), misses = on_device(std::vector<std::int32_t>{-1});
    const auto arrived = on_device(std::vector<std::uint32_t>{0}), first = on_device(std::vector<std::uint32_t>{40});
    DeviceBuffer<float> weight(n), logits(rows * experts), d(rows * cols / 32);
    DeviceBuffer<std::int8_t> q(rows * cols);
    DeviceBuffer<std::int32_t> s(rows * cols / 16);
    DeviceBuffer<ExpertJob> jobs(n);
    Shared<std::uint32_t> doorbell(1, 3);
    Shared<std::int32_t> log(n, kWord), crew_count(4, kWord), crew_miss(n, kWord), crew_s(rows * cols / 16, 0);
    Shared<std::int8_t> crew_q(rows * cols, 0);
    Shared<float> crew_d(rows * cols / 32, 0);
    gpu::RouterArgs args;
    args.router = {weights.get(), experts, 1.0F, {logits.get(), rows, experts}};
    args.x = {x.get(), rows, cols};
    args.used = used, args.slots = d_slots.get(), args.fetched = fetched;
    args.expert = expert.get(), args.weight = weight.get(), args.bad_row = bad.get();
    args.hit = hit.get(), args.miss = miss.get(), args.log = log.get();
    args.jobs = jobs.get(), args.job_count = count.get(), args.bad_pair = bad_pair.get();
    args.arrived = arrived.get();
    args.meeting = {
        {doorbell.get(), nullptr, crew_count.get(), crew_miss.get(), crew_q.get(), crew_d.get(), crew_s.get(), nullptr},
        2,
        first.get(),
        miss.get(),
        misses.get(),
        rows,
        used};
    args.quantized = {q.get(), d.get(), s.get(), cols};
    gpu::router(args, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    Routed all;
    all.hit.resize(n), all.miss.resize(n);
    hit.download(all.hit.data()), miss.download(all.miss.data()), misses.download(&all.misses);
    all.told = crew_miss.values();
    std::int32_t job_count = 0;
    count.download(&job_count);
    std::vector<ExpertJob> listed(n);
    jobs.download(listed.data());
    all.jobs.assign(listed.begin(), listed.begin() + job_count);
    return all;
  }
};

// Those that have come for this meeting are met where they lie, as if their slots said so; those of another meeting, or
// that have not come, are the crew's.
TEST_F(NameExperts, TheRouterMeetsWhatHasCome) {
  constexpr std::size_t kExperts = 64, kStride = 0x10000;
  constexpr std::uint32_t kMeeting = 42;
  Random random(101);
  auto* const places = reinterpret_cast<const std::uint8_t*>(0x7000000);
  int met = 0, late = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const std::size_t rows = 1 + random.below(gpu::kRouterRows), used = trial % 2 == 0 ? 10 : 4, cols = 64;
    const RouterRun router{
        kExperts, rows, used, cols, on_device(drawn(random, kExperts * cols)), on_device(drawn(random, rows * cols))};
    std::vector<const std::uint8_t*> slots(kExperts), with = slots;
    std::vector<std::int32_t> list, off;
    for (std::size_t e = 0; e < kExperts; ++e) {
      if (random.below(2) != 0) slots[e] = reinterpret_cast<const std::uint8_t*>(0x1000 * (e + 1));
      if (slots[e] == nullptr) off.push_back(static_cast<std::int32_t>(e));
    }
    for (std::size_t i = 0; i < gpu::kNames; ++i) {
      const std::size_t at = random.below(static_cast<unsigned>(off.size()));
      list.push_back(off[at]);
      off.erase(off.begin() + static_cast<std::ptrdiff_t>(at));
    }
    with = slots;
    std::vector<std::uint32_t> tags;
    for (std::size_t i = 0; i < gpu::kNames; ++i) {
      tags.push_back(random.below(2) != 0 ? kMeeting : kMeeting - 2 - 2 * static_cast<std::uint32_t>(random.below(3)));
      if (tags[i] == kMeeting) with[static_cast<std::size_t>(list[i])] = places + i * kStride;
    }
    // A list of fewer names.
    if (trial % 5 == 0) {
      if (tags[3] == kMeeting) with[static_cast<std::size_t>(list[3])] = nullptr;
      list[3] = -1, tags[3] = kMeeting - 2;
    }
    const auto d_tags = on_device(tags);
    const auto d_list = on_device(list);
    const Routed found = router.run(slots, {d_tags.get(), d_list.get(), places, kStride});
    const Routed expected = router.run(with, {}), without = router.run(slots, {});
    ASSERT_EQ(found.hit, expected.hit) << trial;
    ASSERT_EQ(found.miss, expected.miss) << trial;
    ASSERT_EQ(found.told, expected.told) << trial;
    ASSERT_EQ(found.misses, expected.misses) << trial;
    ASSERT_EQ(found.jobs.size(), expected.jobs.size()) << trial;
    for (std::size_t j = 0; j < found.jobs.size(); ++j) {
      ASSERT_EQ(found.jobs[j].blob, expected.jobs[j].blob) << trial << ", job " << j;
      ASSERT_EQ(found.jobs[j].expert, expected.jobs[j].expert) << trial << ", job " << j;
      ASSERT_EQ(found.jobs[j].count, expected.jobs[j].count) << trial << ", job " << j;
    }
    met += without.misses - found.misses;
    late += found.misses;
  }
  EXPECT_GT(met, 50);
  EXPECT_GT(late, 100);
}

}  // namespace
}  // namespace tandem::testing
