#include "gpu/expert_fetch.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "gpu/cuda_check.h"
#include "gpu/kernels/router.h"
#include "placement/check.h"

namespace tandem {

namespace {

static_assert(gpu::kNames == kNamedExperts);
// Words at the end of the card's memory: tags and lists of both sets, two of the kernel's; each on lines of its own.
constexpr std::size_t kWords = 4096, kLine = 64;
// Words of the host: the bell, the number of copies done; then the names.
constexpr std::size_t kHostLine = 256;
// A new time counts one part in so many of the mean.
constexpr double kNewest = 1.0 / 16;
// Of a copy's mean time, what is left after a pass that had no time for one.
constexpr double kDoubt = 0.75;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
void add_to_mean(double& mean, double value) {
  mean = mean == 0 ? value : mean + (value - mean) * kNewest;
}

std::uint32_t acquire(std::uint8_t* word) {
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
}

// From the driver's library, which is only there on machines with a card; null: it has none.
using BatchMemOp = CUresult (*)(CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int);
BatchMemOp batch_mem_op() {
  static const BatchMemOp function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, 12000, cudaEnableDefault, &result));
#else
    CUDA_CHECK(cudaGetDriverEntryPoint("cuStreamBatchMemOp", &found, cudaEnableDefault, &result));
#endif
    return result == cudaDriverEntryPointSuccess ? reinterpret_cast<BatchMemOp>(found) : nullptr;
  }();
  return function;
}
CUstreamBatchMemOpParams write_word(std::uint32_t* to, std::uint32_t value) {
  CUstreamBatchMemOpParams params{};
  params.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  params.writeValue.address = reinterpret_cast<CUdeviceptr>(to);
  params.writeValue.value = value;
  return params;
}

}  // namespace

ExpertFetch::ExpertFetch(CudaMemory& memory, const PassGraphs& graphs) : memory_(memory), graphs_(graphs) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
ExpertFetch::~ExpertFetch() {
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

bool ExpertFetch::possible() {
  if (batch_mem_op() == nullptr) return false;
  const std::shared_ptr<std::uint8_t> word = memory_.allocate_staging(kHostLine);
  CUstreamBatchMemOpParams write = write_word(reinterpret_cast<std::uint32_t*>(word.get()), 1);
  if (batch_mem_op()(stream_, 1, &write, 0) != CUDA_SUCCESS) return false;
  CUDA_CHECK(cudaStreamSynchronize(stream_));
  return acquire(word.get()) == 1;
}

bool ExpertFetch::reserve(std::size_t bytes, std::size_t experts, std::size_t meetings) {
  if (card_ && bytes <= bytes_ && experts <= experts_ && meetings <= meetings_) return false;
  bytes = std::max(bytes_, (bytes + 255) / 256 * 256);
  experts = std::max(experts_, experts), meetings = std::max(meetings_, meetings);
  const std::size_t total = 2 * gpu::kNames * bytes + gpu::kRouterRows * experts * sizeof(float) + kWords;
  CHECK(std::cmp_equal(total, fetch_bytes(static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(experts))),
        "{} bytes to fetch experts with", total);
  std::shared_ptr<std::uint8_t> card = memory_.allocate(total);
  std::shared_ptr<std::uint8_t> host =
      memory_.allocate_staging(2 * kHostLine + meetings * gpu::kNames * sizeof(std::int32_t));
  std::memset(host.get(), 0, 2 * kHostLine);
  CUDA_CHECK(cudaDeviceSynchronize());  // the card's memory is zeroed by the machine's stream, and written by ours
  card_ = std::move(card), host_ = std::move(host);
  bytes_ = bytes, experts_ = experts, meetings_ = meetings;
  seen_.assign(experts_, 0);
  issued_ = ended_ = 0;
  return true;
}

void ExpertFetch::set_how(FetchAhead how, double cost) {
  CHECK(how == FetchAhead::kOff || card_, "experts are to be fetched, and there is no room for them");
  judge_ = FetchJudge(how, cost);
}

std::uint32_t* ExpertFetch::tags(std::uint32_t index) const {
  auto* const words = reinterpret_cast<std::uint32_t*>(card_.get() + 2 * gpu::kNames * bytes_ +
                                                       gpu::kRouterRows * experts_ * sizeof(float));
  return words + index % 2 * kLine;
}
std::int32_t* ExpertFetch::list(std::uint32_t index) const {
  return reinterpret_cast<std::int32_t*>(tags(index) + 2 * kLine);
}
std::uint32_t ExpertFetch::copies_done() const {
  return acquire(host_.get() + kHostLine);
}

gpu::NameArgs ExpertFetch::names(std::uint32_t index, std::size_t rows, std::size_t experts,
                                 const std::uint32_t* first_number) const {
  CHECK(index < meetings_ && rows <= gpu::kRouterRows && experts <= experts_, "meeting {}, {} rows, {} experts", index,
        rows, experts);
  gpu::NameArgs args;
  args.router.y = {reinterpret_cast<float*>(card_.get() + 2 * gpu::kNames * bytes_), rows, experts};
  args.bell = reinterpret_cast<std::uint32_t*>(host_.get());
  args.told = reinterpret_cast<std::int32_t*>(host_.get() + 2 * kHostLine) + index * gpu::kNames;
  args.list = list(index);
  args.index = index;
  args.first_number = first_number;
  args.bad_row = list(0) + 2 * kLine;
  args.arrived = tags(0) + 5 * kLine;
  return args;
}

gpu::FetchedExperts ExpertFetch::fetched(std::uint32_t index) const {
  return {tags(index), list(index), card_.get() + index % 2 * gpu::kNames * bytes_, bytes_};
}

void ExpertFetch::begin(std::uint32_t first_number, std::span<Bank> banks) {
  banks_ = banks;
  first_ = first_number;
  named_ = {};
  counts_ = {};
  crew_experts_ = 0;
  crew_seconds_ = 0;
  computed_ = false;
  if (!banks_.empty()) heard_ = acquire(host_.get());
  heard_before_ = heard_;
}

void ExpertFetch::copy(std::uint32_t number, std::size_t place, const std::uint8_t* from) {
  const std::uint32_t index = number - first_;
  CHECK(banks_[index].bytes <= bytes_, "an expert of {} bytes for a place of {}", banks_[index].bytes, bytes_);
  CUDA_CHECK(cudaMemcpyAsync(card_.get() + (index % 2 * gpu::kNames + place) * bytes_, from, banks_[index].bytes,
                             cudaMemcpyHostToDevice, stream_));
  CUstreamBatchMemOpParams writes[] = {
      write_word(tags(index) + place, number),
      write_word(reinterpret_cast<std::uint32_t*>(host_.get() + kHostLine), ++issued_),
  };
  const CUresult result = batch_mem_op()(stream_, 2, writes, 0);
  CHECK(result == CUDA_SUCCESS, "cuStreamBatchMemOp: error {}", static_cast<int>(result));
  ++counts_.copies;
}

// When those under way have ended, as far as one can tell.
double ExpertFetch::copies_end(Clock::time_point now) {
  if (const std::uint32_t done = copies_done(); done != ended_) {
    // One that was under way when this wait began ended unseen.
    if (copying_since_ >= waits_since_)
      add_to_mean(copy_seconds_, seconds_between(copying_since_, now) / (done - ended_));
    ended_ = done;
    copying_since_ = now;
  }
  const std::uint32_t under_way = issued_ - ended_;
  return under_way == 0 ? 0.0 : std::max(0.0, under_way * copy_seconds_ - seconds_between(copying_since_, now));
}

void ExpertFetch::poll(std::uint32_t number) {
  if (banks_.empty()) return;
  if (const std::uint32_t bell = acquire(host_.get()); bell != heard_) {
    heard_ = bell;
    const std::uint32_t index = bell - first_;
    CHECK(index < banks_.size() && banks_[index].ram != nullptr, "names for meeting {} of {}", index, banks_.size());
    Named& named = this->named(bell);
    named.number = bell;
    std::copy_n(reinterpret_cast<const std::int32_t*>(host_.get() + 2 * kHostLine) + index * gpu::kNames, gpu::kNames,
                named.experts.begin());
    named.next = 0;
  }
  const Clock::time_point now = Clock::now();
  const double before = copies_end(now);  // also when nothing is left to copy: how long a copy takes is seen here
  // Not for a later meeting: the rows of this one may want the crew any moment.
  Named& named = this->named(number);
  if (named.number != number || named.next == gpu::kNames || named.experts[named.next] < 0) return;
  // One that runs and one behind it, so that the engine is kept busy.
  if (issued_ - ended_ >= 2 || graphs_.launching()) return;
  Bank& bank = banks_[number - first_];
  const double wait = bank.wait[computed_ ? 1 : 0];
  if (wait > 0 && before + copy_seconds_ > wait - seconds_between(waits_since_, now)) return;
  if (issued_ == ended_) copying_since_ = now;
  const std::size_t place = named.next++;
  const std::uint8_t* const from = bank.ram[named.experts[place]];
  if (from != nullptr) copy(number, place, from);  // else it is in the file
}

void ExpertFetch::met(std::uint32_t number, std::span<const std::int32_t> asked, std::span<const std::int32_t> crew) {
  const bool computed = std::exchange(computed_, !crew.empty());
  if (!banks_.empty() && banks_[number - first_].ram != nullptr) {
    const Clock::time_point now = Clock::now();
    add_to_mean(banks_[number - first_].wait[computed ? 1 : 0], seconds_between(waits_since_, now));
    copies_end(now);
    // One that is late takes that long at least.
    if (const double so_far = seconds_between(copying_since_, now);
        issued_ != ended_ && copying_since_ >= waits_since_ && so_far > copy_seconds_)
      add_to_mean(copy_seconds_, so_far);
  }
  for (const std::int32_t e : crew)
    if (e >= 0 && std::cmp_less(e, seen_.size()) && std::exchange(seen_[static_cast<std::size_t>(e)], number) != number)
      ++crew_experts_;
  const Named& named = this->named(number);
  if (banks_.empty() || named.number != number) return;
  const std::span copied(named.experts.data(), named.next);
  for (const std::int32_t e : copied) {
    // The crew has it where it came too late.
    const bool wanted = std::find(asked.begin(), asked.end(), e) != asked.end();
    if (wanted && seen_[static_cast<std::size_t>(e)] != number) ++counts_.asked;
  }
}

void ExpertFetch::end() {
  if (!banks_.empty() && copies_done() != issued_) CUDA_CHECK(cudaStreamSynchronize(stream_));
  banks_ = {};
  // A copy that took long once, as the first one does, must not keep others from ever being tried.
  if (heard_ != heard_before_ && counts_.copies == 0) copy_seconds_ *= kDoubt;
  judge_.count(counts_, crew_experts_, crew_seconds_);
}

}  // namespace tandem
