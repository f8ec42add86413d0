// The crew: every unit once, whatever the boards, the workers and the load; nested and concurrent use; exceptions.
#include "cpu/crew.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <numeric>
#include <random>
#include <stdexcept>
#include <thread>

#include "cpu/played_card.h"
#include "cpu/topology.h"

namespace tandem {
namespace {

class CrewTest : public ::testing::TestWithParam<int> {
 protected:
  Crew crew_{CrewOptions{GetParam(), {}}};
};
INSTANTIATE_TEST_SUITE_P(Workers, CrewTest, ::testing::Values(1, 2, 3, 5));  // 5: more than this machine has

TEST_P(CrewTest, EveryUnitOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t n = random() % 50;
    std::vector<std::atomic<int>> hits(n + 1);
    crew_.loop(n, [&](std::size_t i) { ++hits[i]; });
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(hits[i], 1) << "unit " << i << " of " << n;
    ASSERT_EQ(hits[n], 0);
  }
}

// What the units wrote is there when the loop returns, without any synchronisation of the reader's own.
TEST_P(CrewTest, ResultsAreSeen) {
  std::vector<std::size_t> values(997);
  for (std::size_t round = 1; round < 500; ++round) {
    crew_.loop(values.size(), [&](std::size_t i) { values[i] = i * round; });
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i * round);
  }
}

// A job on the expert board runs while its publisher works on a loop; both end whole.
TEST_P(CrewTest, ExpertsBesideLoops) {
  for (int round = 0; round < 300; ++round) {
    std::vector<std::atomic<int>> experts(64), looped(40);
    const auto expert = [&](std::size_t i) { ++experts[i]; };
    const Crew::Body body(expert);
    crew_.start_experts(experts.size(), body);
    for (int k = 0; k < 3; ++k) crew_.loop(looped.size(), [&](std::size_t i) { ++looped[i]; });
    for (const auto& count : looped) ASSERT_EQ(count, 3);
    crew_.wait_experts();
    for (const auto& count : experts) ASSERT_EQ(count, 1);
  }
}

TEST_P(CrewTest, CopiesBesideEverything) {
  std::vector<std::atomic<int>> copied(100);
  const auto copy = [&](std::size_t i) { ++copied[i]; };
  const Crew::Body body(copy);
  for (int round = 1; round <= 100; ++round) {
    crew_.start_copies(copied.size(), body);
    std::atomic<int> done{0};
    const auto expert = [&](std::size_t) { ++done; };
    const Crew::Body expert_body(expert);
    crew_.start_experts(10, expert_body);
    crew_.wait_experts();
    ASSERT_EQ(done, 10);
    crew_.wait_copies();
    for (const auto& count : copied) ASSERT_EQ(count, round);
  }
}

// Units are claimed in ascending order, so a unit may wait for an earlier one without ever hanging.
TEST_P(CrewTest, LaterUnitsMayWaitForEarlierOnes) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<bool>> ready(30);
    const auto unit = [&](std::size_t i) {
      if (i > 0)
        while (!ready[i / 2].load()) sched_yield();
      ready[i].store(true);
    };
    ready[0].store(true);
    const Crew::Body body(unit);
    crew_.start_experts(ready.size(), body);
    crew_.wait_experts();
    for (const auto& flag : ready) ASSERT_TRUE(flag);
  }
}

TEST_P(CrewTest, LoopsInsideUnitsRunAlone) {
  std::atomic<int> inner{0};
  crew_.loop(8, [&](std::size_t) { crew_.loop(5, [&](std::size_t) { ++inner; }); });
  EXPECT_EQ(inner, 40);
}

// A worker that looked at the board during one job and claims during the next must not run the old one's body.
TEST_P(CrewTest, JobsAreNotMistakenForEachOther) {
  std::atomic<int> ran[2] = {};
  const auto even = [&](std::size_t) { ran[0].fetch_add(1, std::memory_order_relaxed); };
  const auto odd = [&](std::size_t) { ran[1].fetch_add(1, std::memory_order_relaxed); };
  const Crew::Body bodies[2] = {Crew::Body(even), Crew::Body(odd)};
  int expected[2] = {};
  for (int round = 0; round < 100000; ++round) {
    const int which = round % 2;
    const std::size_t units = 1 + static_cast<std::size_t>(round / 2 % 2);
    expected[which] += static_cast<int>(units);
    crew_.start_experts(units, bodies[which]);
    crew_.wait_experts();
    ASSERT_EQ(ran[which].load(std::memory_order_relaxed), expected[which]) << "round " << round;
  }
}

// Inside a unit of any board a loop is run by the thread that calls it, and by no other.
TEST_P(CrewTest, LoopsInsideExpertsRunOnTheirThread) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> elsewhere{0}, ran{0};
    const auto expert = [&](std::size_t) {
      const std::thread::id here = std::this_thread::get_id();
      crew_.loop(20, [&](std::size_t) {
        ++ran;
        if (std::this_thread::get_id() != here) ++elsewhere;
        // Long enough for the others, who have nothing to do, to come and help.
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
        while (std::chrono::steady_clock::now() < end) sched_yield();
      });
    };
    const Crew::Body body(expert);
    crew_.start_experts(1, body);
    crew_.wait_experts();
    ASSERT_EQ(ran, 20);
    ASSERT_EQ(elsewhere, 0);
  }
}

// A loop is shared, however many were before it, nested or not: each unit waits until the other has begun.
TEST(Crew, EveryLoopIsShared) {
  Crew crew({2, {}});
  ASSERT_TRUE(crew.warning().empty()) << crew.warning();
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> there{0};
    crew.loop(2, [&](std::size_t) {
      ++there;
      while (there < 2) sched_yield();  // hangs when one thread runs both
    });
    crew.loop(3, [&](std::size_t) { crew.loop(3, [](std::size_t) {}); });
  }
}

// Copies are done in what time is left: a worker that is free takes experts first.
TEST(Crew, ExpertsGoBeforeCopies) {
  Crew crew({2, {}});
  std::atomic<bool> published{false};
  std::atomic<int> copied{0}, done{0}, before_the_last{-1};
  constexpr int kCopies = 80, kExperts = 20, kClaim = kCopies / 8;
  const auto copy = [&](std::size_t) {
    while (!published) sched_yield();
    ++copied;
  };
  const auto expert = [&](std::size_t) {
    if (++done == kExperts) before_the_last = copied.load();
  };
  const Crew::Body copy_body(copy), expert_body(expert);
  crew.start_copies(kCopies, copy_body);
  crew.start_experts(kExperts, expert_body);
  published = true;
  while (before_the_last < 0) sched_yield();  // the worker does it alone
  EXPECT_LE(before_the_last, kClaim);
  crew.wait_experts();
  crew.wait_copies();
  EXPECT_EQ(copied, kCopies);
}

std::vector<std::uint8_t> numbers(std::size_t n, unsigned seed) {
  std::vector<std::uint8_t> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>((i * 7 + i / 251 + seed) & 0xff);
  return bytes;
}

// Blobs of less than a piece, of some pieces and a rest, and of whole pieces.
TEST_P(CrewTest, ThePlayedCardCopiesAndExchanges) {
  PlayedCard card(crew_);
  const std::vector<std::size_t> sizes{64, 131072, 131072 * 3 + 64, 500000};
  constexpr std::size_t kGap = 64;  // stays as it is
  std::size_t total = kGap;
  for (const std::size_t size : sizes) total += size + kGap;
  const std::shared_ptr<std::uint8_t> memory = card.allocate(total);
  std::fill_n(memory.get(), total, std::uint8_t{0xcc});
  const std::vector<std::uint8_t> source = numbers(500000, 3);
  std::vector<CardMemory::Copy> copies;
  std::size_t at = kGap;
  for (const std::size_t size : sizes) {
    copies.push_back({memory.get() + at, source.data(), size});
    at += size + kGap;
  }
  for (int round = 0; round < 3; ++round) {
    card.start(std::vector<CardMemory::Copy>(copies));
    card.wait();
  }
  std::vector<std::uint8_t> expected(total, 0xcc);
  for (const CardMemory::Copy& copy : copies)
    std::copy_n(source.data(), copy.bytes, expected.data() + (copy.to - memory.get()));
  EXPECT_EQ(std::vector<std::uint8_t>(memory.get(), memory.get() + total), expected);

  // The next copies are those and no more.
  std::fill_n(copies[3].to, copies[3].bytes, std::uint8_t{1});
  card.start(std::span(copies).first(1));
  card.wait();
  EXPECT_EQ(std::count(copies[3].to, copies[3].to + copies[3].bytes, 1), static_cast<std::ptrdiff_t>(copies[3].bytes));
  card.start(std::span(copies).last(1));
  card.wait();

  for (const CardMemory::Copy& copy : copies) {
    std::vector<std::uint8_t> ram = numbers(copy.bytes + kGap, 99);
    const std::vector<std::uint8_t> before = ram;
    card.exchange(copy.to, ram.data(), copy.bytes);
    EXPECT_TRUE(std::equal(ram.begin(), ram.end() - kGap, source.begin()));
    EXPECT_TRUE(std::equal(ram.end() - kGap, ram.end(), before.end() - kGap));
    std::copy_n(before.data(), copy.bytes, expected.data() + (copy.to - memory.get()));
  }
  EXPECT_EQ(std::vector<std::uint8_t>(memory.get(), memory.get() + total), expected);
  EXPECT_TRUE(card.host_readable());
}

TEST_P(CrewTest, TwoCallersAtOnce) {
  std::atomic<int> sum{0};
  const auto call = [&] {
    for (int i = 0; i < 200; ++i) crew_.loop(16, [&](std::size_t) { ++sum; });
  };
  std::thread other(call);
  call();
  other.join();
  EXPECT_EQ(sum, 2 * 200 * 16);
}

TEST_P(CrewTest, ExceptionsReachTheCaller) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ran{0};
    const auto run = [&] {
      crew_.loop(20, [&](std::size_t i) {
        ++ran;
        if (i % 7 == 3) throw std::runtime_error("unit");
      });
    };
    EXPECT_THROW(run(), std::runtime_error);
    // A crew of one stops at the first; a larger one runs what others have claimed. Either way it works on.
    std::atomic<int> after{0};
    crew_.loop(20, [&](std::size_t) { ++after; });
    ASSERT_EQ(after, 20);
  }
}

// Workers sleep after a while and wake again.
TEST_P(CrewTest, WakesUp) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::atomic<int> ran{0};
    const auto unit = [&](std::size_t) { ++ran; };
    const Crew::Body body(unit);
    crew_.start_experts(100, body);
    crew_.wait_experts();
    EXPECT_EQ(ran, 100);
  }
}

// A sleeping crew really does the work: its caller only waits.
TEST(Crew, WorkersTakeUnitsByThemselves) {
  Crew crew({2, {}});
  ASSERT_TRUE(crew.warning().empty()) << crew.warning();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::atomic<bool> ran{false};
  const auto unit = [&](std::size_t) { ran = true; };
  const Crew::Body body(unit);
  crew.start_experts(1, body);
  while (!ran) std::this_thread::yield();  // hangs, and the test times out, when nobody but the caller would run it
  crew.wait_experts();
}

TEST(Crew, BindsItsWorkers) {
  const std::vector<int> processors = crew_processors(read_topology(), CrewCores::kAll);
  const int workers = static_cast<int>(processors.size());
  if (workers < 2) GTEST_SKIP() << "one core";
  Crew crew({workers, processors});
  EXPECT_EQ(crew.bound_workers(), workers - 1);
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(workers));
  std::atomic<int> there{0};
  const std::thread::id caller = std::this_thread::get_id();
  crew.loop(seen.size(), [&](std::size_t) {
    ++there;
    while (there < workers) sched_yield();  // so that every worker takes exactly one unit
    if (std::this_thread::get_id() == caller) return;
    const int cpu = sched_getcpu();
    for (std::size_t i = 1; i < seen.size(); ++i)
      if (processors[i] == cpu) ++seen[i];
  });
  for (std::size_t i = 1; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << "processor " << processors[i];
}

TEST(Crew, ManyCrewsAtOnce) {
  std::vector<std::unique_ptr<Crew>> crews;
  for (int i = 0; i < 6; ++i) crews.push_back(std::make_unique<Crew>(CrewOptions{3, {}}));
  std::atomic<int> sum{0};
  for (const auto& crew : crews) {
    EXPECT_TRUE(crew->warning().empty()) << crew->warning();
    crew->loop(10, [&](std::size_t) { ++sum; });
  }
  EXPECT_EQ(sum, 60);
}

}  // namespace
}  // namespace tandem
