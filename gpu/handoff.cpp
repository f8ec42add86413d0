#include "gpu/handoff.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "runtime/timeline.h"

namespace tandem {

namespace {

constexpr auto kPatience = std::chrono::seconds(2);

bool reached(std::uint32_t have, std::uint32_t want) {
  return static_cast<std::int32_t>(have - want) >= 0;
}

}  // namespace

Handoff::Handoff(CudaMemory& memory) : memory_(memory), given_(memory.allocate_staging(256)), miss_number_(memory, 1) {}

void Handoff::await_late(const std::uint32_t* number, DeviceStream stream) {
  gpu::await_number(reinterpret_cast<const std::uint32_t*>(given_.get()), number, stream);
}

void Handoff::give_late(std::uint32_t number) {
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(given_.get()))
      .store(number, std::memory_order_release);
}

bool Handoff::reserve(std::size_t rows, std::size_t used, std::size_t cols, std::size_t out, std::size_t meetings) {
  if (rows <= rows_ && used <= used_ && cols <= cols_ && out <= out_ && meetings <= meetings_) return false;
  rows_ = std::max(rows, rows_), used_ = std::max(used, used_), cols_ = std::max(cols, cols_);
  out_ = std::max(out, out_), meetings_ = std::max(meetings, meetings_);
  std::size_t total = 0;
  // Each part on cache lines of its own: the two sides write different ones.
  const auto part = [&](std::size_t bytes) {
    const std::size_t at = total;
    total += (bytes + 255) / 256 * 256;
    return at;
  };
  const std::size_t doorbell = part(4), answer = part(4), count = part(meetings_ * 4), miss = part(rows_ * used_ * 4);
  const std::size_t q = part(rows_ * cols_), d = part(rows_ * cols_ / 32 * 4), s = part(rows_ * cols_ / 16 * 4);
  const std::size_t y = part(rows_ * used_ * out_ * sizeof(float));
  const std::uint32_t last = area_.answer != nullptr ? *area_.answer : 0;
  owners_.push_back(memory_.allocate_staging(total));
  std::uint8_t* base = owners_.back().get();
  area_ = {reinterpret_cast<std::uint32_t*>(base + doorbell), reinterpret_cast<std::uint32_t*>(base + answer),
           reinterpret_cast<std::int32_t*>(base + count),     reinterpret_cast<std::int32_t*>(base + miss),
           reinterpret_cast<std::int8_t*>(base + q),          reinterpret_cast<float*>(base + d),
           reinterpret_cast<std::int32_t*>(base + s),         reinterpret_cast<float*>(base + y)};
  *area_.doorbell = *area_.answer = last;
  return true;
}

gpu::MeetingArgs Handoff::args(const Meeting& meeting, const std::int32_t* misses,
                               const std::uint32_t* first_number) const {
  CHECK(meeting.rows <= rows_ && meeting.used <= used_ && meeting.cols <= cols_ && meeting.out <= out_ &&
            meeting.index < meetings_,
        "a meeting of {} x {} rows, {} to {}, number {}", meeting.rows, meeting.used, meeting.cols, meeting.out,
        meeting.index);
  return {area_, meeting.index, first_number, misses, miss_number_.data(), meeting.rows, meeting.used};
}

void Handoff::wait_for(std::uint32_t number, ExpertFetch* fetch) const {
  const std::atomic_ref<std::uint32_t> doorbell(*area_.doorbell);
  if (fetch != nullptr) fetch->wait_begins();
  for (int spin = 0; spin < 20'000; ++spin) {
    if (reached(doorbell.load(std::memory_order_acquire), number)) return;
    if (fetch != nullptr) fetch->poll(number);
    _mm_pause();
  }
  // No call of CUDA here: it could wait for the thread that launches the pass, which may wait for us. ExpertFetch::poll
  // makes some, and waits until that thread is done.
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  while (!reached(doorbell.load(std::memory_order_acquire), number)) {
    CHECK(std::chrono::steady_clock::now() < give_up,
          "the card stands at meeting {} for 2 seconds, the CPU waits for {} and has answered {}", doorbell.load(),
          number, *area_.answer);
    for (int spin = 0; spin < 1000; ++spin) _mm_pause();
  }
}

double Handoff::serve(const Meeting& meeting, std::uint32_t first_number, Ops& crew, ExpertFetch* fetch) {
  const std::uint32_t number = first_number + meeting.index;
  {
    const Span span("wait for the card");
    wait_for(number, fetch);
  }
  const bool misses = area_.miss_count[meeting.index] != 0;
  if (fetch != nullptr && meeting.asked != nullptr) {
    const std::size_t pairs = meeting.rows * meeting.used;
    fetch->met(number, {meeting.asked, pairs}, {area_.miss, misses ? pairs : 0});
  }
  if (!misses) return 0;
  const Span span("crew");
  const auto start = std::chrono::steady_clock::now();
  const Routes routes{area_.miss, nullptr, meeting.rows, meeting.used};
  Activation a;
  a.x = ConstRows(nullptr, meeting.rows, meeting.cols);
  a.q = {area_.q, area_.d, area_.s, meeting.rows, meeting.cols};
  // On the crew's board for experts, with its longer claims.
  crew.start_experts(*meeting.bank, routes, a, Rows(area_.y, meeting.rows * meeting.used, meeting.out), {});
  crew.finish_experts();
  std::atomic_ref<std::uint32_t>(*area_.answer).store(number, std::memory_order_release);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (fetch != nullptr && meeting.asked != nullptr) fetch->computed(seconds);
  return seconds;
}

void Handoff::answer_all(std::uint32_t number) {
  std::atomic_ref<std::uint32_t>(*area_.answer).store(number, std::memory_order_release);
}

}  // namespace tandem
