// The meeting of card and CPU: microseconds of one exchange of numbers inside a recorded pass, by flags that kernels
// spin on (gpu/handoff.h) and by stream memory operations of the driver.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <immintrin.h>

#include <CLI/CLI.hpp>
#include <atomic>

#include "bench/bench.h"
#include "gpu/cuda_check.h"
#include "gpu/cuda_memory.h"
#include "gpu/gpu_ops.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/meeting.h"
#include "placement/check.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

constexpr std::size_t kMeetings = 48;  // layers of the real model
constexpr std::size_t kCols = 2560;

struct Recorded {
  cudaGraphExec_t graph = nullptr;
  ~Recorded() { static_cast<void>(cudaGraphExecDestroy(graph)); }
};

template <typename Launch>
bool record(cudaStream_t stream, Recorded& out, Launch&& launch) {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  const bool fine = launch();
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess || !fine) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  CUDA_CHECK(cudaGraphInstantiate(&out.graph, graph, 0));
  CUDA_CHECK(cudaGraphDestroy(graph));
  return true;
}

// Runs the record `repeats` times with a host that answers every number as soon as it sees it; seconds of each.
std::vector<double> answer(cudaStream_t stream, const Recorded& record, std::uint32_t* doorbell, std::uint32_t* reply,
                           std::uint32_t* first, int repeats, bool write_first) {
  std::vector<double> seconds;
  std::uint32_t number = 1;
  for (int i = 0; i < repeats; ++i) {
    *first = number;
    if (!write_first) {  // numbers are part of the record: start anew
      *doorbell = *reply = 0;
      number = 1;
    }
    const auto start = std::chrono::steady_clock::now();
    CUDA_CHECK(cudaGraphLaunch(record.graph, stream));
    for (std::size_t m = 0; m < kMeetings; ++m, ++number) {
      const std::atomic_ref<std::uint32_t> bell(*doorbell);
      const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (static_cast<std::int32_t>(bell.load(std::memory_order_acquire) - number) < 0) {
        _mm_pause();
        CHECK(std::chrono::steady_clock::now() < give_up, "meeting {} of {}", bell.load(), number);
      }
      std::atomic_ref<std::uint32_t>(*reply).store(number, std::memory_order_release);
    }
    CUDA_CHECK(cudaStreamSynchronize(stream));
    if (i > 2) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

void report(const char* what, const std::vector<double>& seconds) {
  const Summary summary = summarise(seconds);
  write_stdout(fmt::format("{:44} {:6.2f} us a meeting (p95 {:.2f}, best {:.2f})\n", what,
                           summary.median * 1e6 / kMeetings, summary.p95 * 1e6 / kMeetings,
                           summary.best * 1e6 / kMeetings));
}

using MemoryOp = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
MemoryOp driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess) return nullptr;
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<MemoryOp>(found) : nullptr;
}

int run(int argc, char** argv) {
  int device = 0, repeats = 100;
  CLI::App app("Microseconds of a meeting of card and CPU", "bench_handoff");
  app.add_option("--device", device, "number of the card")->capture_default_str();
  app.add_option("--repeats", repeats, "passes of 48 meetings")->check(CLI::Range(10, 100000))->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::string why_not;
  if (list_gpus(&why_not).empty()) fail_input("--device {}: expected a usable GPU, but {}", device, why_not);
  CUDA_CHECK(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  {
    CudaMemory memory(stream);
    const auto staging = memory.allocate_staging(1 << 20);
    auto* words = reinterpret_cast<std::uint32_t*>(staging.get());
    gpu::MeetingMemory area;
    area.doorbell = words;
    area.answer = words + 64;
    area.miss_count = reinterpret_cast<std::int32_t*>(words + 128);
    area.miss = reinterpret_cast<std::int32_t*>(words + 256);
    area.q = reinterpret_cast<std::int8_t*>(words + 1024);
    area.d = reinterpret_cast<float*>(words + 8192);
    area.s = reinterpret_cast<std::int32_t*>(words + 16384);
    area.y = reinterpret_cast<float*>(words + 32768);
    const Staged<std::uint32_t> first(memory, 1);
    const Array<std::int8_t> q(memory, kCols);
    const Array<float> d(memory, kCols / 32), y(memory, kCols), out(memory, kCols);
    const Array<std::int32_t> s(memory, kCols / 16), number(memory, 1);
    for (const bool missed : {true, false}) {
      const std::int32_t expert = missed ? 3 : -1;
      const auto miss = Array<std::int32_t>::of(memory, {&expert, 1});
      Recorded graph;
      record(stream, graph, [&] {
        first.send(0, 1);
        for (std::uint32_t m = 0; m < kMeetings; ++m) {
          const gpu::MeetingArgs args{area, m, first.data(), miss.data(), number.data(), 1, 1};
          gpu::publish(args, {q.data(), d.data(), s.data(), kCols}, stream);
          gpu::await(args, stream);
          gpu::combine(miss.data(), d.data(), 1, {y.data(), 1, kCols}, {d.data(), 1, 1}, {y.data(), 1, kCols},
                       {out.data(), 1, kCols}, stream, {miss.data(), area.y});
        }
        return true;
      });
      *area.doorbell = *area.answer = 0;
      report(missed ? "flags, a route missed (rows and results moved)" : "flags, nothing missed",
             answer(stream, graph, area.doorbell, area.answer, first.host(), repeats, true));
    }

    const MemoryOp write = driver_function("cuStreamWriteValue32"), wait = driver_function("cuStreamWaitValue32");
    Recorded graph;
    const auto at = [](std::uint32_t* word) { return reinterpret_cast<CUdeviceptr>(word); };
    const bool recorded = write != nullptr && wait != nullptr && record(stream, graph, [&] {
                            for (std::uint32_t m = 1; m <= kMeetings; ++m) {
                              if (write(stream, at(area.doorbell), m, 0) != CUDA_SUCCESS) return false;
                              if (wait(stream, at(area.answer), m, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
                                return false;
                            }
                            return true;
                          });
    if (recorded)
      report("stream memory operations, numbers alone",
             answer(stream, graph, area.doorbell, area.answer, first.host(), repeats, false));
    else
      write_stdout("stream memory operations cannot be recorded with this driver\n");
  }
  CUDA_CHECK(cudaStreamDestroy(stream));
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_handoff", [&] { return tandem::bench::run(argc, argv); });
}
