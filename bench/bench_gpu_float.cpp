// The float kernels of the card at the shapes of the model: microseconds per launch for windows of 1, 4 and 8 rows,
// and, where a kernel moves much memory, its rate as a share of the copy kernel's, measured in the same run.
//
// A time is that of a CUDA graph of `kRepeat` launches divided by kRepeat: what
// the kernel adds to a captured pass, launch gap included. There is a set of arguments per launch, so that a state or a
// weight comes from memory and not from the L2 cache, as in a pass over 48 layers.
//
//   bench_gpu_float [NAME]   only the lines that contain NAME
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "gpu/kernels/attention.h"
#include "gpu/kernels/copy.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/float_matmul.h"
#include "gpu/kernels/gdn_scan.h"
#include "gpu/kernels/history.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/ngram.h"
#include "gpu/kernels/norms.h"
#include "gpu/kernels/route.h"
#include "gpu/kernels/router.h"
#include "gpu/kernels/sample.h"
#include "gpu/kernels/select.h"

namespace tandem {
namespace {

constexpr int kRepeat = 40, kRuns = 7;
constexpr std::size_t kMostRows = 16;

// Memory of the card filled with small floats, given out piece by piece. A piece that does not fit starts over: sets of
// arguments may then share memory, which costs a kernel nothing.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : fresh_(kFresh), buffer_(bytes / 4 / kFresh * kFresh) {
    std::vector<float> values(kFresh);
    std::uint32_t state = 1;
    for (float& v : values) {
      state = state * 1664525U + 1013904223U;
      v = (static_cast<float>(state >> 8) * 0x1p-24F - 0.5F) * 0.25F;
    }
    fresh_.upload(values.data());
    restart();
  }
  float* floats(std::size_t n) {
    n = (n + 63) / 64 * 64;
    if (used_ + n > buffer_.size()) used_ = 0;
    float* at = buffer_.get() + used_;
    used_ += n;
    return at;
  }
  DeviceRows rows(std::size_t r, std::size_t c) { return {floats(r * c), r, c}; }
  // Everything free and as at first: what one kernel wrote is no input of the next (NaN takes other ways).
  void restart() {
    used_ = 0;
    for (std::size_t at = 0; at < buffer_.size(); at += kFresh)
      CUDA_CHECK(cudaMemcpy(buffer_.get() + at, fresh_.get(), fresh_.bytes(), cudaMemcpyDeviceToDevice));
  }

 private:
  static constexpr std::size_t kFresh = std::size_t{1} << 24;
  DeviceBuffer<float> fresh_, buffer_;
  std::size_t used_ = 0;
};

cudaStream_t stream = nullptr;

// Microseconds per call of body(i), i = 0 .. kRepeat - 1.
double time_graph(const std::function<void(int)>& body) {
  cudaGraph_t graph;
  cudaGraphExec_t run;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < kRepeat; ++i) body(i);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&run, graph, 0));
  cudaEvent_t begin, end;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int r = 0; r < kRuns + 2; ++r) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    CUDA_CHECK(cudaGraphLaunch(run, stream));
    CUDA_CHECK(cudaEventRecord(end, stream));
    CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (r >= 2) times.push_back(ms);
  }
  CUDA_CHECK(cudaGraphExecDestroy(run));
  CUDA_CHECK(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return 1e3 * static_cast<double>(times[kRuns / 2]) / kRepeat;
}

// A meeting with a crew that never needs to answer.
struct Meeting {
  std::uint8_t* host = nullptr;
  gpu::MeetingMemory memory;
  std::int32_t* log = nullptr;
  DeviceBuffer<std::uint32_t> first, arrived;

  Meeting() : first(1), arrived(1) {
    CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host), 1 << 20, cudaHostAllocMapped));
    const auto words = [this](std::size_t at) { return reinterpret_cast<std::int32_t*>(host + at); };
    memory = {reinterpret_cast<std::uint32_t*>(host),
              reinterpret_cast<std::uint32_t*>(host + 256),
              words(512),
              words(1024),
              reinterpret_cast<std::int8_t*>(host + 8192),
              reinterpret_cast<float*>(host + (1 << 17)),
              words(1 << 18),
              nullptr};
    log = words(1 << 19);
    const std::uint32_t zero = 0;
    first.upload(&zero), arrived.upload(&zero);
  }
  ~Meeting() { static_cast<void>(cudaFreeHost(host)); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
};

double roof = 0;  // bytes per microsecond of the copy kernel, read and written

struct Line {
  std::string name;
  double bytes = 0;  // moved by a call, 0: not worth a rate
  std::function<std::function<void(int)>(std::size_t w)> make;
};

void print(const Line& line, Memory& memory) {
  fmt::print("{:<34}", line.name);
  for (const std::size_t w : {1U, 4U, 8U, 16U}) {
    memory.restart();
    const double us = time_graph(line.make(w));
    fmt::print(" {:8.2f}", us);
    if (line.bytes > 0)
      fmt::print(" {:4.0f}%", 100 * line.bytes / us / roof);
    else
      fmt::print("      ");
  }
  fmt::print("\n");
}

// One set of arguments per launch of the graph.
template <typename Make>
auto sets(Make make) {
  std::vector<decltype(make())> list;
  for (int i = 0; i < kRepeat; ++i) list.push_back(make());
  return list;
}

DeviceBuffer<std::int32_t> scalar(std::int32_t value) {
  DeviceBuffer<std::int32_t> buffer(1);
  buffer.upload(&value);
  return buffer;
}

// Only the lines whose name contains `wanted`.
void run(const std::string& wanted) {
  CUDA_CHECK(cudaStreamCreate(&stream));
  Memory memory(std::size_t{900} << 20);
  constexpr std::size_t kCopy = std::size_t{256} << 20;
  float* from = memory.floats(kCopy / 4);
  float* to = memory.floats(kCopy / 4);
  roof = 2.0 * kCopy / time_graph([&](int) { launch_copy(to, from, kCopy, stream); });
  cudaDeviceProp device;
  CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  fmt::print("{}: copy kernel {:.0f} GB/s, read and written\n", device.name, roof / 1e3);
  fmt::print("{:<34} {:>8}       {:>8}       {:>8}       {:>8}\n", "us per launch (share of copy)", "w=1", "w=4", "w=8",
             "w=16");

  const DeviceBuffer<std::int32_t> bad = scalar(std::numeric_limits<std::int32_t>::max());
  const auto line = [&](std::string name, double bytes, auto make) {
    if (name.find(wanted) != std::string::npos) print({std::move(name), bytes, make}, memory);
  };

  line("empty: add2 of one column", 0, [&](std::size_t) {
    const DeviceRows x = memory.rows(1, 1);
    return [=](int) { gpu::add2(x, x, x, stream); };
  });
  for (const std::size_t groups : {4U, 1U})
    line(fmt::format("rms_norm {} of {}", groups, 10240 / groups), 0, [&, groups](std::size_t w) {
      const auto list = sets([&] { return std::pair{memory.rows(w, 10240), memory.rows(w, 10240)}; });
      const float* gamma = memory.floats(10240);
      return [=](int i) {
        const auto& [x, y] = list[static_cast<std::size_t>(i)];
        gpu::rms_norm(x, groups, gamma, 1e-6F, y, stream);
      };
    });
  line("l2_norm 16 heads of 128", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 2048), memory.rows(w, 2048)}; });
    return [=](int i) {
      const auto& [x, y] = list[static_cast<std::size_t>(i)];
      gpu::l2_norm(x, 128, 1e-6F, 0.1F, y, stream);
    };
  });
  line("norm_rope 24 heads of 256", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 12288), memory.rows(w, 6144)}; });
    const gpu::DeviceRope rope{memory.floats(1024), memory.floats(1024), 32, nullptr};
    const float* gamma = memory.floats(256);
    return [=](int i) {
      const auto& [x, y] = list[static_cast<std::size_t>(i)];
      gpu::norm_rope(x, 24, 256, 512, gamma, 1e-6F, rope, y, stream);
    };
  });
  line("gdn_output 48 heads of 128", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 6144), memory.rows(w, 6144)}; });
    const float* norm = memory.floats(128);
    return [=](int i) {
      const auto& [o, z] = list[static_cast<std::size_t>(i)];
      gpu::gdn_output(o, z, norm, 128, 1e-6F, o, stream);
    };
  });
  line("hc_low 320", 0, [&](std::size_t w) {
    const auto list = sets([&] { return memory.rows(w, 320); });
    return [=](int i) { gpu::hc_low(list[static_cast<std::size_t>(i)], 4, stream); };
  });
  line("hc_mix 10240 to 2560", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 10240), memory.rows(w, 10240)}; });
    const DeviceRows mixed = memory.rows(w, 2560);
    return [=](int i) {
      const auto& [n, g] = list[static_cast<std::size_t>(i)];
      gpu::hc_mix(n, g, 4, mixed, stream);
    };
  });
  line("hc_write 10240", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 10240), memory.rows(w, 2560)}; });
    const DeviceRows inject = memory.rows(w, 4);
    return [=](int i) {
      const auto& [x, y] = list[static_cast<std::size_t>(i)];
      gpu::hc_write(x, y, inject, 4, stream);
    };
  });
  line("gdn_gates 48", 0, [&](std::size_t w) {
    const DeviceRows alpha = memory.rows(w, 48), beta = memory.rows(w, 48);
    const float *bias = memory.floats(48), *a = memory.floats(48);
    return [=](int) { gpu::gdn_gates(alpha, beta, bias, a, stream); };
  });
  const std::vector<std::int32_t> zeros(kMostRows * 10);
  DeviceBuffer<std::int32_t> ids(zeros.size());  // expert 0: none is left out
  ids.upload(zeros.data());
  const std::vector<std::int32_t> minus(kMostRows * 10, -1);
  DeviceBuffer<std::int32_t> none(minus.size());  // no route misses
  none.upload(minus.data());
  line("combine 10 of 2560", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w * 10, 2560), memory.rows(w, 2560)}; });
    const float* weight = memory.floats(w * 10);
    const DeviceRows logit = memory.rows(w, 1), out = memory.rows(w, 2560);
    return [=, expert = ids.get()](int i) {
      const auto& [y, shared] = list[static_cast<std::size_t>(i)];
      gpu::combine(expert, weight, 10, y, logit, shared, out, stream);
    };
  });
  line("ple_gate 4 of 2560", 0, [&](std::size_t w) {
    const auto list = sets([&] { return std::pair{memory.rows(w, 10240), memory.rows(w, 10240)}; });
    const DeviceRows value = memory.rows(w, 2560), gv = memory.rows(w, 10240);
    return [=](int i) {
      const auto& [k, q] = list[static_cast<std::size_t>(i)];
      gpu::ple_gate(k, q, value, 4, gv, stream);
    };
  });
  for (const bool logged : {false, true})
    line(logged ? "causal_conv and log, 10240" : "causal_conv 10240, 4 taps", 0, [&, logged](std::size_t w) {
      struct Set {
        DeviceRows history, log, x;
      };
      const auto list = sets([&] {
        return Set{memory.rows(3, 10240), memory.rows(kMostRows, 10240), memory.rows(w, 10240)};
      });
      const DeviceRows taps = memory.rows(4, 10240), y = memory.rows(w, 10240);
      return [=](int i) {
        const Set& s = list[static_cast<std::size_t>(i)];
        gpu::causal_conv(s.history, s.x, taps, 1, y, logged ? s.log.data : nullptr, stream);
      };
    });
  line("commit_rows 3 of 10240", 0, [&](std::size_t w) {
    const gpu::DeviceHistory history{memory.floats(3 * 10240), memory.floats(16 * 10240), 3, 10240};
    const DeviceRows x = memory.rows(w, 10240);
    return [=](int) { gpu::commit_rows(history, x, stream); };
  });
  line("keep_rows of a sequence", 0, [&](std::size_t w) {
    std::vector<gpu::DeviceHistory> list;
    for (int i = 0; i < 36; ++i) list.push_back({memory.floats(3 * 10240), memory.floats(16 * 10240), 3, 10240});
    for (int i = 0; i < 12; ++i) list.push_back({memory.floats(3 * 128), memory.floats(16 * 128), 3, 128});
    list.push_back({memory.floats(9 * 10240), memory.floats(16 * 10240), 9, 10240});
    return [=](int) { gpu::keep_rows(list.data(), list.size(), nullptr, w, stream); };
  });
  line("copy_rows k, decay", 0, [&](std::size_t w) {
    const gpu::RowCopy copies[] = {{memory.rows(w, 2048), memory.rows(w, 2048)},
                                   {memory.rows(w, 48), memory.rows(w, 48)}};
    return [=](int) { gpu::copy_rows(copies, 2, stream); };
  });
  for (const std::int32_t replayed : {0, 3})
    for (const bool logged : {false, true}) {
      const DeviceBuffer<std::int32_t> replay = scalar(replayed);
      // The state is read; it is written unless only the new rows are logged and none were replayed.
      const double bytes = (logged && replayed == 0 ? 1.0 : 2.0) * 48 * 128 * 128 * 4;
      line(fmt::format("gdn_scan {}, {} replayed", logged ? "logged" : "committed", replayed), bytes,
           [&, logged](std::size_t w) {
             const auto states = sets([&] { return memory.floats(48 * 128 * 128); });
             gpu::DeviceGdnScan scan;
             scan.key_heads = 16, scan.value_heads = 48, scan.dim = 128;
             scan.replay_k = memory.rows(16, 2048), scan.replay_u = memory.rows(16, 6144);
             scan.replay_decay = memory.rows(16, 48), scan.replay_count = replay.get();
             scan.q = memory.rows(w, 2048), scan.k = memory.rows(w, 2048), scan.v = memory.rows(w, 6144);
             scan.decay = memory.rows(w, 48), scan.beta = memory.rows(w, 48), scan.out = memory.rows(w, 6144);
             if (logged) scan.log_u = memory.rows(w, 6144);
             return [=](int i) {
               gpu::DeviceGdnScan s = scan;
               s.state = states[static_cast<std::size_t>(i)];
               gpu::gdn_scan(s, stream);
             };
           });
    }
  struct Matrix {
    std::size_t n, cols;
    gpu::FloatType type;
    const char* name;
  };
  for (const Matrix& m : {Matrix{512, 2560, gpu::FloatType::kF32, "F32"},
                          {512, 2560, gpu::FloatType::kBf16, "BF16"},
                          {128, 2560, gpu::FloatType::kBf16, "BF16"},
                          {48, 2560, gpu::FloatType::kF32, "F32"},
                          {1, 2560, gpu::FloatType::kF32, "F32"},
                          {4, 10240, gpu::FloatType::kF32, "F32"},
                          {320, 10240, gpu::FloatType::kBf16, "BF16"},
                          {10240, 320, gpu::FloatType::kBf16, "BF16"},
                          {10240, 2560, gpu::FloatType::kBf16, "BF16"}}) {
    const std::size_t size = m.type == gpu::FloatType::kF32 ? 4 : 2;
    const auto bytes = static_cast<double>(m.n * m.cols * size);
    line(fmt::format("float_matmul {} [{}, {}]", m.name, m.n, m.cols), bytes, [&, m](std::size_t w) {
      const auto weights = sets([&] { return memory.floats(m.n * m.cols * size / 4 + 1); });
      const DeviceRows x = memory.rows(w, m.cols), y = memory.rows(w, m.n);
      return [=](int i) { gpu::float_matmul(m.type, weights[static_cast<std::size_t>(i)], m.n, 1.0F, x, y, stream); };
    });
  }
  line("route 10 of 512", 0, [&](std::size_t w) {
    const DeviceRows logits = memory.rows(w, 512);
    auto* expert = reinterpret_cast<std::int32_t*>(memory.floats(w * 10));
    float* weight = memory.floats(w * 10);
    return [=, flag = bad.get()](int) { gpu::route(logits, 10, expert, weight, flag, stream); };
  });
  // Every expert is on the card; with a meeting the crew is told so, and the quantised rows.
  const Meeting meeting;
  const std::vector<const std::uint8_t*> here(512, reinterpret_cast<const std::uint8_t*>(std::uintptr_t{256}));
  DeviceBuffer<const std::uint8_t*> slots(here.size());
  slots.upload(here.data());
  for (const bool meets : {false, true})
    line(meets ? "router, with a meeting" : "router", 512.0 * 2560 * 4, [&, meets](std::size_t w) {
      const auto weights = sets([&] { return std::pair{memory.floats(512 * 2560), memory.floats(2560)}; });
      const auto ints = [&](std::size_t n) { return reinterpret_cast<std::int32_t*>(memory.floats(n)); };
      gpu::RouterArgs args;
      args.x = memory.rows(w, 2560);
      args.used = 10, args.slots = slots.get(), args.bad_row = bad.get();
      args.expert = ints(w * 10), args.hit = ints(w * 10), args.miss = ints(w * 10),
      args.weight = memory.floats(w * 10);
      args.log = meeting.log;
      args.jobs = reinterpret_cast<ExpertJob*>(memory.floats(w * 10 * sizeof(ExpertJob) / 4));
      args.job_count = ints(1), args.bad_pair = ints(w * 10), args.arrived = meeting.arrived.get();
      if (meets) {
        args.meeting = {meeting.memory, 0, meeting.first.get(), args.miss, ints(1), w, 10};
        args.quantized = {reinterpret_cast<const std::int8_t*>(memory.floats(w * 640)), memory.floats(w * 80),
                          ints(w * 160), 2560};
      }
      const DeviceRows logits = memory.rows(w, 512), gate = memory.rows(w, 1);
      return [=](int i) mutable {
        const auto& [router, shared] = weights[static_cast<std::size_t>(i)];
        args.router = {router, 512, 1.0F, logits}, args.other = {shared, 1, 1.0F, gate};
        gpu::router(args, stream);
      };
    });
  line("combine with the crew, no miss", 0, [&](std::size_t w) {
    const DeviceRows y = memory.rows(w * 10, 2560), shared = memory.rows(w, 2560), logit = memory.rows(w, 1),
                     out = memory.rows(w, 2560);
    const float* weight = memory.floats(w * 10);
    const gpu::CrewRows crew{none.get(), nullptr};
    return [=, expert = ids.get()](int) { gpu::combine(expert, weight, 10, y, logit, shared, out, stream, crew); };
  });
  for (const std::int32_t position : {1000, 8192, 32768, 131072, 262000}) {
    const DeviceBuffer<std::int32_t> at = scalar(position);
    const std::size_t most = static_cast<std::size_t>(position) / 4 + 8;
    const double bytes = position < 2051 ? 0 : static_cast<double>(most) * 512;
    line(fmt::format("select_positions at {}", position), bytes, [&](std::size_t w) {
      const auto pooled = sets([&] { return memory.rows(most, 128); });
      const DeviceRows q = memory.rows(w, 512);
      float* scores = memory.floats(w * most);
      DeviceLists lists{reinterpret_cast<std::int32_t*>(memory.floats(w * 2051)),
                        reinterpret_cast<std::int32_t*>(memory.floats(w)), w, 2051};
      return [=, flag = bad.get(), where = at.get()](int i) {
        gpu::select_positions(q, 4, pooled[static_cast<std::size_t>(i)], where, 4, 512, lists, scores, flag, stream);
      };
    });
  }
  const DeviceBuffer<std::int32_t> seven = scalar(7);
  line("index_blocks", 0, [&](std::size_t w) {
    gpu::DeviceIndexBlocks blocks;
    blocks.raw = {memory.floats(3 * 128), memory.floats(16 * 128), 3, 128};
    blocks.keys = memory.rows(w, 128), blocks.position = seven.get(), blocks.ratio = 4;
    blocks.gamma = memory.floats(128), blocks.eps = 1e-6F;
    blocks.cos = memory.rows(8, 32), blocks.sin = memory.rows(8, 32), blocks.pooled = memory.rows(64, 128);
    return [=](int) { gpu::index_blocks(blocks, stream); };
  });
  for (const std::size_t entries : {200U, 2051U, 16384U}) {
    line(fmt::format("attention f16, {} entries", entries), 0, [&, entries](std::size_t w) {
      const std::size_t capacity = entries + 16;
      struct Set {
        float *k, *v;
      };
      const auto caches = sets([&] { return Set{memory.floats(capacity * 256), memory.floats(capacity * 256)}; });
      const DeviceRows q = memory.rows(w, 6144), gate = memory.rows(w, 24 * 512), out = memory.rows(w, 6144);
      std::vector<std::int32_t> positions(w * entries), counts(w, static_cast<std::int32_t>(entries));
      for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>(i % entries);
      DeviceLists lists{reinterpret_cast<std::int32_t*>(memory.floats(positions.size())),
                        reinterpret_cast<std::int32_t*>(memory.floats(w)), w, entries};
      CUDA_CHECK(cudaMemcpy(lists.positions, positions.data(), positions.size() * 4, cudaMemcpyHostToDevice));
      CUDA_CHECK(cudaMemcpy(lists.count, counts.data(), w * 4, cudaMemcpyHostToDevice));
      float* work = memory.floats(gpu::attention_bytes(w, 24, 256, entries) / 4);
      return [=](int i) {
        const Set& s = caches[static_cast<std::size_t>(i)];
        gpu::attention(q, {true, s.k, s.v, 2, 256, capacity}, lists, entries, 0.06F, gate, 512, out, work, stream);
      };
    });
  }
  line("kv_store f16", 0, [&](std::size_t w) {
    const DeviceRows k = memory.rows(w, 512), v = memory.rows(w, 512);
    const gpu::DeviceKv kv{true, memory.floats(64 * 256), memory.floats(64 * 256), 2, 256, 64};
    return [=, where = seven.get()](int) { gpu::kv_store(kv, where, k, v, stream); };
  });
  enum class Choose { kArgMax, kSample, kSum };
  for (const auto& [what, name] :
       {std::pair{Choose::kArgMax, "arg_max of 248320"}, std::pair{Choose::kSample, "sample of 248320"},
        std::pair{Choose::kSum, "softmax_sum of 248320"}})
    line(name, 0, [&, what = what](std::size_t w) {
      const DeviceRows logits = memory.rows(w, 248320);
      auto* chosen = reinterpret_cast<Chosen*>(memory.floats(w * sizeof(Chosen) / sizeof(float)));
      auto* arrived = reinterpret_cast<std::uint32_t*>(memory.floats(1));
      CUDA_CHECK(cudaMemset(arrived, 0, sizeof *arrived));
      void* work = memory.floats(gpu::sample_bytes(w) / 4);
      const gpu::SampleNumbers values{1, 0.7F, 7};
      auto* numbers = reinterpret_cast<gpu::SampleNumbers*>(memory.floats(sizeof values / sizeof(float)));
      CUDA_CHECK(cudaMemcpy(numbers, &values, sizeof values, cudaMemcpyHostToDevice));
      return [=, flag = bad.get()](int) {
        if (what == Choose::kSum) return gpu::softmax_sum(logits, numbers, chosen, arrived, work, stream);
        if (what == Choose::kSample) return gpu::sample(logits, nullptr, numbers, chosen, flag, work, stream);
        gpu::arg_max(logits, nullptr, chosen, flag, work, stream);
      };
    });
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  alarm(90);  // a kernel that hangs must not hold the machine
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    fmt::print(stderr, "bench_gpu_float: no CUDA device\n");
    return 2;
  }
  // bench_gpu_float [FILTER [early]]: with early starts, as passes have them on cards that can.
  tandem::set_early_starts(argc > 2 && std::string_view(argv[2]) == "early");
  tandem::run(argc > 1 ? argv[1] : "");
  return 0;
}
