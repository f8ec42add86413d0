// The card's quantised products: every tile type x activation rows x route on one matrix, some types on the matrices of
// the model, and the expert FFN over resident experts; in GB/s of weight bytes and as a share of the copy roof of the
// same run. Weights are cold: every launch of a sample reads another copy, and the copies exceed the cache many times.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "bench/bench.h"
#include "bench/gpu_timer.cuh"
#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "gpu/kernels/copy.h"
#include "gpu/kernels/expert_ffn.h"
#include "gpu/kernels/hc_read.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/tile_product.h"
#include "placement/check.h"
#include "runtime/expert_blob.h"

namespace tandem::bench {
namespace {

constexpr std::size_t kMaxWidth = 16, kHidden = 2560;
constexpr DType kTypes[] = {DType::Q4_0,   DType::Q4_1,   DType::Q5_0,    DType::Q5_1,   DType::Q8_0,  DType::Q2_0,
                            DType::IQ4_NL, DType::MXFP4,  DType::Q2_K,    DType::Q3_K,   DType::Q4_K,  DType::Q5_K,
                            DType::Q6_K,   DType::IQ4_XS, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                            DType::IQ3_S,  DType::IQ1_S,  DType::IQ1_M};

struct Options {
  std::vector<std::string> types;
  std::vector<std::size_t> widths{1, 2, 4, 5, 8};
  std::size_t cold_mib = 1024, expert_gib = 24, samples = 7;
  bool experts = true, matrices = true, shapes = true, early = false;
  std::vector<std::string> expert_types;
  std::string csv, machine;
};

struct Bench {
  Options options;
  Timer timer;
  DeviceBuffer<std::uint8_t> cold;  // the copies of a matrix, or two halves of a plain copy
  double roof = 0;                  // bytes read and written per second by a copy
  std::unique_ptr<CsvFile> csv;
  std::string card;

  void report(const std::string& what, const std::string& type, std::size_t rows, std::size_t cols, std::size_t width,
              const std::string& route, double bytes, double seconds) {
    const double rate = bytes / seconds;
    csv->row({card, what, type, fmt::to_string(rows), fmt::to_string(cols), fmt::to_string(width), route,
              fmt::format("{:.0f}", bytes), fmt::format("{:.3f}", 1e6 * seconds), fmt::format("{:.1f}", 1e-9 * rate),
              fmt::format("{:.3f}", rate / roof)});
  }
};

// Quantised activations of kMaxWidth rows.
struct Inputs {
  DeviceBuffer<float> x;
  DeviceBuffer<std::int8_t> q;
  DeviceBuffer<float> d;
  DeviceBuffer<std::int32_t> s, bad;
  Inputs(std::size_t cols, cudaStream_t stream)
      : x(kMaxWidth * cols), q(kMaxWidth * cols), d(kMaxWidth * cols / 32), s(kMaxWidth * cols / 16), bad(1) {
    std::vector<float> values(kMaxWidth * cols);
    std::mt19937 random(7);
    for (float& v : values) v = std::normal_distribution<float>()(random);
    x.upload(values.data());
    launch_quantize(x.get(), cols, kMaxWidth, cols, q.get(), d.get(), s.get(), bad.get(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  DeviceQuant quant() const { return {q.get(), d.get(), s.get()}; }
};

// Fills `to` with copies of the tiles, as many as fit; returns how many bytes they are apart.
void replicate(const std::vector<std::uint8_t>& tiles, std::uint8_t* to, std::size_t copies) {
  CUDA_CHECK(cudaMemcpy(to, tiles.data(), tiles.size(), cudaMemcpyHostToDevice));
  std::size_t done = 1;
  while (done < copies) {
    const std::size_t more = std::min(done, copies - done);
    CUDA_CHECK(cudaMemcpy(to + done * tiles.size(), to, more * tiles.size(), cudaMemcpyDeviceToDevice));
    done += more;
  }
}

const char* route_name(TileRoute route) {
  return route == TileRoute::kDot ? "dp4a" : route == TileRoute::kMma ? "mma" : "auto";
}

// One matrix at every width and route; prints microseconds and the share of the roof. False when routes differ.
bool run_matrix(Bench& bench, DType type, std::size_t rows, std::size_t cols) {
  // Tiles repeat after 64 rows of the file at most: packing a head on one core would take longer than measuring it.
  const std::size_t some = std::min<std::size_t>(rows, 2560);
  std::vector<std::uint8_t> tiles = random_tiles(type, some, cols);
  const std::size_t bytes = packed_bytes(type, rows, cols);
  while (tiles.size() < bytes)
    tiles.insert(tiles.end(), tiles.begin(),
                 tiles.begin() + static_cast<std::ptrdiff_t>(std::min(tiles.size(), bytes - tiles.size())));
  const std::size_t copies = std::clamp<std::size_t>(bench.cold.bytes() / bytes, 1, 400);
  replicate(tiles, bench.cold.get(), copies);
  const Inputs x(cols, bench.timer.stream());
  DeviceBuffer<float> y(kMaxWidth * rows), other(kMaxWidth * rows);
  DeviceBuffer<unsigned> never(1);
  const std::size_t launches = std::clamp<std::size_t>(std::max(copies, (std::size_t{256} << 20) / bytes), 4, 400);
  const double read = bench.timer.time(launches, bench.options.samples, [&](std::size_t i) {
    launch_read(never.get(), bench.cold.get() + i % copies * bytes, bytes / 16 * 16, bench.timer.stream());
  });
  bench.report("read", std::string(dtype_name(type)), rows, cols, 0, "read", static_cast<double>(bytes), read);
  fmt::print("{:8} {:>6} x {:<5} {:7.2f} MB  read {:5.1f} us {:3.0f}% ", dtype_name(type), rows, cols,
             1e-6 * static_cast<double>(bytes), 1e6 * read, 100 * static_cast<double>(bytes) / read / bench.roof);
  bool same = true;
  for (const std::size_t width : bench.options.widths)
    for (const TileRoute route : {TileRoute::kDot, TileRoute::kMma}) {
      if (route == TileRoute::kDot && width > 2) continue;
      const auto launch = [&](std::size_t i) {
        launch_tile_matmul({type, bench.cold.get() + i % copies * bytes, rows, cols, 1.0F}, x.quant(), width, y.get(),
                           rows, bench.timer.stream(), route);
      };
      launch(0);
      launch_tile_matmul({type, bench.cold.get(), rows, cols, 1.0F}, x.quant(), width, other.get(), rows,
                         bench.timer.stream(), route == TileRoute::kDot ? TileRoute::kMma : TileRoute::kDot);
      CUDA_CHECK(cudaStreamSynchronize(bench.timer.stream()));
      std::vector<std::uint32_t> a(y.size()), b(y.size());
      CUDA_CHECK(cudaMemcpy(a.data(), y.get(), 4 * width * rows, cudaMemcpyDeviceToHost));
      CUDA_CHECK(cudaMemcpy(b.data(), other.get(), 4 * width * rows, cudaMemcpyDeviceToHost));
      a.resize(width * rows);
      b.resize(width * rows);
      if (a != b) same = false;
      const double seconds = bench.timer.time(launches, bench.options.samples, launch);
      bench.report("matrix", std::string(dtype_name(type)), rows, cols, width, route_name(route),
                   static_cast<double>(bytes), seconds);
      fmt::print("| {} w{} {:5.1f} us {:3.0f}% ", route == TileRoute::kDot ? "dot" : "mma", width, 1e6 * seconds,
                 100 * static_cast<double>(bytes) / seconds / bench.roof);
    }
  fmt::print("{}\n", same ? "" : "  ROUTES DIFFER");
  std::fflush(stdout);
  return same;
}

struct ExpertTypes {
  DType gate_up, down;
};

// The routed experts of one layer after the other, `used` random ones per row.
void run_experts(Bench& bench, const ExpertTypes& types, DeviceBuffer<std::uint8_t>& memory) {
  constexpr std::size_t kFf = 640, kExperts = 512, kUsed = 10;
  ExpertBank bank;
  bank.gate = {nullptr, types.gate_up, kFf, kHidden, 1.0F, {}};
  bank.up = bank.gate;
  bank.down = {nullptr, types.down, kHidden, kFf, 1.0F, {}};
  const ExpertBlobLayout layout = ExpertBlobLayout::of(bank);
  std::vector<std::uint8_t> blob(layout.bytes);
  const auto put = [&](const ExpertBlobLayout::Part& part) {
    const std::vector<std::uint8_t> tiles = random_tiles(part.type, part.rows, part.cols);
    std::copy(tiles.begin(), tiles.end(), blob.begin() + static_cast<std::ptrdiff_t>(part.offset));
  };
  put(layout.gate);
  put(layout.up);
  put(layout.down);
  const std::size_t copies = memory.bytes() / layout.bytes;
  const std::size_t layers = std::max<std::size_t>(1, std::min<std::size_t>(48, copies / kExperts));
  replicate(blob, memory.get(), std::min(copies, layers * kExperts));
  std::vector<const std::uint8_t*> slots(layers * kExperts);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = memory.get() + i % copies * layout.bytes;
  DeviceBuffer<const std::uint8_t*> device_slots(slots.size());
  device_slots.upload(slots.data());
  const Inputs x(kHidden, bench.timer.stream());
  DeviceBuffer<std::uint8_t> work(expert_scratch_bytes(kMaxWidth * kUsed, kFf));
  const ExpertScratch scratch = make_expert_scratch(work.get(), kMaxWidth * kUsed, kFf);
  DeviceBuffer<float> y(kMaxWidth * kUsed * kHidden);
  fmt::print("experts {} + {}, {} layers, {:.1f} GiB: ", dtype_name(types.gate_up), dtype_name(types.down), layers,
             static_cast<double>(std::min(copies, layers * kExperts) * layout.bytes) / 1073741824.0);
  for (const std::size_t width : {1UL, 2UL, 4UL, 8UL}) {
    std::vector<std::int32_t> routes(layers * width * kUsed);
    std::mt19937 random(static_cast<std::uint32_t>(width));
    std::size_t distinct = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      std::set<std::int32_t> all;
      for (std::size_t r = 0; r < width; ++r) {
        std::set<std::int32_t> row;
        while (row.size() < kUsed) row.insert(static_cast<std::int32_t>(random() % kExperts));
        std::copy(row.begin(), row.end(), routes.begin() + static_cast<std::ptrdiff_t>((l * width + r) * kUsed));
        all.insert(row.begin(), row.end());
      }
      distinct += all.size();
    }
    DeviceBuffer<std::int32_t> device_routes(routes.size());
    device_routes.upload(routes.data());
    const double bytes = static_cast<double>(distinct * layout.bytes) / static_cast<double>(layers);
    const double seconds = bench.timer.time(layers, bench.options.samples, [&](std::size_t l) {
      launch_expert_ffn(layout, {},
                        {device_routes.get() + l * width * kUsed, width, kUsed, device_slots.get() + l * kExperts},
                        x.quant(), y.get(), kHidden, scratch, bench.timer.stream());
    });
    bench.report("experts", fmt::format("{}+{}", dtype_name(types.gate_up), dtype_name(types.down)), kFf, kHidden,
                 width, "", bytes, seconds);
    fmt::print("| w{} {:5.1f} us {:4.0f} GB/s {:3.0f}% ", width, 1e6 * seconds, 1e-9 * bytes / seconds,
               100 * bytes / seconds / bench.roof);
  }
  const double quantize = bench.timer.time(48, bench.options.samples, [&](std::size_t) {
    launch_quantize(x.x.get(), kHidden, 1, kHidden, x.q.get(), x.d.get(), x.s.get(), x.bad.get(), bench.timer.stream());
  });
  DeviceBuffer<std::int32_t> ten(kUsed);
  const std::vector<std::int32_t> ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  ten.upload(ids.data());
  const double jobs = bench.timer.time(48, bench.options.samples, [&](std::size_t) {
    launch_expert_jobs({ten.get(), 1, kUsed, device_slots.get()}, 1, scratch.jobs, scratch.job_count, scratch.bad,
                       bench.timer.stream());
  });
  fmt::print("| quantize w1 {:.1f} us, jobs w1 {:.1f} us\n", 1e6 * quantize, 1e6 * jobs);
  std::fflush(stdout);
}

// A READ with its WRITE, Q8_0, cold weights: all of it and its launches.
void run_hc_read(Bench& bench) {
  constexpr std::size_t kRank = 320, kWide = kHcStreams * kHidden;
  const std::vector<std::uint8_t> down = random_tiles(DType::Q8_0, kRank, kWide);
  const std::vector<std::uint8_t> up = random_tiles(DType::Q8_0, kWide, kRank);
  const std::size_t copies = std::min<std::size_t>(48, bench.cold.bytes() / (down.size() + up.size()));
  std::uint8_t* const second = bench.cold.get() + copies * down.size();
  replicate(down, bench.cold.get(), copies);
  replicate(up, second, copies);
  DeviceBuffer<float> x(kHcRows * kWide), normed(kHcRows * kWide), low(kHcRows * kRank), mixed(kHcRows * kHidden);
  DeviceBuffer<float> gamma(kWide), inject_weights(kHcStreams * kWide), inject(kHcRows * kHcStreams);
  DeviceBuffer<float> block(kHcRows * kHidden);
  for (const auto* buffer : {&x, &normed, &gamma, &inject_weights, &inject, &block})
    CUDA_CHECK(cudaMemset(buffer->get(), 0x3C, buffer->bytes()));
  DeviceBuffer<std::uint8_t> memory(hc_scratch_bytes(kWide, kRank));
  const Inputs quant(kHidden, bench.timer.stream());
  DeviceHcRead read;
  read.eps = 1e-6F;
  read.gamma = gamma.get();
  read.inject_weights = inject_weights.get();
  read.mixed_q = {quant.q.get(), quant.d.get(), quant.s.get(), quant.bad.get()};
  read.scratch = make_hc_scratch(memory.get(), kWide, kRank);
  read.scratch.normed_q.bad = read.scratch.low_q.bad = quant.bad.get();
  CUDA_CHECK(cudaMemset(read.scratch.arrived, 0, read.scratch.arrived_bytes));
  CUDA_CHECK(cudaDeviceSynchronize());
  for (const std::size_t w : {1U, 2U, 4U, 8U, 16U}) {
    read.x = {x.get(), w, kWide};
    read.normed = {normed.get(), w, kWide};
    read.low = {low.get(), w, kRank};
    read.inject = {inject.get(), w, kHcStreams};
    read.mixed = {mixed.get(), w, kHidden};
    read.written = {block.get(), w, kHidden};
    read.written_inject = read.inject;
    const auto time = [&](int parts) {
      return bench.timer.time(copies, bench.options.samples, [&](std::size_t i) {
        read.down = {DType::Q8_0, bench.cold.get() + i * down.size(), kRank, kWide, 1.0F};
        read.up = {DType::Q8_0, second + i * up.size(), kWide, kRank, 1.0F};
        if ((parts & 1) != 0) launch_hc_norm(read, bench.timer.stream());
        if ((parts & 2) != 0) launch_hc_down(read, bench.timer.stream());
        if ((parts & 4) != 0) launch_hc_up(read, bench.timer.stream());
      });
    };
    const double all = time(7), norm = time(1), products = time(2), mix = time(4);
    const auto bytes = static_cast<double>(down.size() + up.size());
    bench.report("hc_read", "Q8_0", kRank, kWide, w, "", bytes, all);
    fmt::print("hc_read w{:2}: {:5.1f} us (norm {:.1f}, down {:.1f}, up {:.1f} alone)\n", w, 1e6 * all, 1e6 * norm,
               1e6 * products, 1e6 * mix);
  }
  std::fflush(stdout);
}

int run(const Options& options) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    fail_input("no CUDA device here. Fix: run this where there is one");
  Bench bench;
  bench.options = options;
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  bench.card = properties.name;
  load_tile_kernels();
  load_hc_kernels();
  set_early_starts(options.early);
  bench.cold = DeviceBuffer<std::uint8_t>(options.cold_mib << 20);
  CUDA_CHECK(cudaMemset(bench.cold.get(), 1, bench.cold.bytes()));
  const MachineInfo machine = machine_info(options.machine);
  bench.csv = std::make_unique<CsvFile>(options.csv, machine,
                                        std::vector<std::string>{"card", "what", "type", "rows", "cols", "width",
                                                                 "route", "bytes", "us", "gb_s", "share_of_copy"});
  const std::size_t half = bench.cold.bytes() / 2;
  bench.roof = 2.0 * static_cast<double>(half) / bench.timer.time(4, options.samples, [&](std::size_t) {
    launch_copy(bench.cold.get() + half, bench.cold.get(), half, bench.timer.stream());
  });
  DeviceBuffer<unsigned> never(1);
  const double read = static_cast<double>(2 * half) / bench.timer.time(4, options.samples, [&](std::size_t) {
    launch_read(never.get(), bench.cold.get(), 2 * half, bench.timer.stream());
  });
  fmt::print("{}: copy roof {:.0f} GB/s (read + written), read {:.0f} GB/s; shares are of the copy roof\n", bench.card,
             1e-9 * bench.roof, 1e-9 * read);
  bench.report("copy", "", 0, 0, 0, "copy", static_cast<double>(2 * half), static_cast<double>(2 * half) / bench.roof);
  const auto wanted = [](const std::vector<std::string>& names, std::string_view name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  bool same = true;
  if (options.matrices) run_hc_read(bench);
  for (const DType type : kTypes) {
    if (options.matrices && wanted(options.types, dtype_name(type)))
      same = run_matrix(bench, type, 10240, 2560) && same;
  }
  if (options.shapes) {  // spec/model.md: z, output and query matrices, the shared expert, the streams, the head
    struct Shape {
      DType type;
      std::size_t rows, cols;
    };
    for (const Shape& s :
         {Shape{DType::Q4_K, 6144, 2560}, Shape{DType::Q8_0, 2560, 6144}, Shape{DType::Q5_0, 2560, 6144},
          Shape{DType::Q6_K, 512, 2560}, Shape{DType::Q8_0, 640, 2560}, Shape{DType::Q8_0, 2560, 640},
          Shape{DType::Q8_0, 320, 10240}, Shape{DType::Q8_0, 10240, 320}, Shape{DType::Q6_K, 248320, 2560}})
      same = run_matrix(bench, s.type, s.rows, s.cols) && same;
  }
  if (options.experts) {
    std::size_t free_bytes = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total));
    DeviceBuffer<std::uint8_t> memory(std::min(options.expert_gib << 30, free_bytes / 10 * 8));
    for (const ExpertTypes& types :
         {ExpertTypes{DType::Q4_K, DType::Q5_1}, ExpertTypes{DType::Q4_K, DType::IQ4_NL},
          ExpertTypes{DType::IQ3_XXS, DType::IQ4_NL}, ExpertTypes{DType::IQ2_XXS, DType::Q2_0},
          ExpertTypes{DType::Q6_K, DType::Q8_0}, ExpertTypes{DType::MXFP4, DType::MXFP4}})
      if (wanted(options.expert_types, fmt::format("{}+{}", dtype_name(types.gate_up), dtype_name(types.down))))
        run_experts(bench, types, memory);
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  CLI::App app{"Quantised products on the card, as a share of its copy roof"};
  tandem::bench::Options options;
  app.add_option("--types", options.types, "block types by name; default all")->delimiter(',');
  app.add_option("--widths", options.widths, "activation rows per pass")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--cold", options.cold_mib, "MiB of copies of a matrix");
  app.add_option("--expert-gib", options.expert_gib, "GiB of resident experts");
  app.add_option("--samples", options.samples, "samples of a median")->check(CLI::PositiveNumber);
  app.add_flag("!--no-experts", options.experts, "leave the experts out");
  app.add_option("--experts", options.expert_types, "experts by their types, as IQ3_XXS+IQ4_NL; default all")
      ->delimiter(',');
  app.add_flag("!--no-matrices", options.matrices, "leave the matrices of all types and READ out");
  app.add_flag("--early-starts", options.early, "let kernels start before the one before them has ended, as passes do");
  app.add_flag("!--no-shapes", options.shapes, "leave the matrices of the model out");
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
  CLI11_PARSE(app, argc, argv);
  return tandem::bench::guarded_main("bench_gpu_kernels", [&] { return tandem::bench::run(options); });
}
