// The card's products of many rows (gpu/kernels/tile_gemm.h): matrices of the model at the widths of a prompt's pass,
// and experts in batches, as int8 operations a second and as a share of half the card's int8 peak.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>

#include "bench/gpu_timer.cuh"
#include "gpu/device_buffer.h"
#include "gpu/kernels/quantize.h"
#include "gpu/kernels/tile_gemm.h"
#include "placement/check.h"
#include "runtime/expert_blob.h"

namespace tandem::bench {
namespace {

struct Options {
  std::vector<std::size_t> widths{32, 512, 4096};
  std::size_t samples = 5;
  double peak = 1979;  // int8 tera-operations a second, of the data sheet of an H200
  std::string csv, machine;
};

struct Case {
  DType type;
  std::size_t rows, cols;
};
constexpr Case kCases[] = {{DType::Q8_0, 10240, 2560},   {DType::Q8_0, 2560, 6144},     {DType::Q8_0, 320, 10240},
                           {DType::Q8_0, 10240, 320},    {DType::Q4_K, 10240, 2560},    {DType::Q6_K, 10240, 2560},
                           {DType::IQ4_NL, 10240, 2560}, {DType::IQ3_XXS, 10240, 2560}, {DType::IQ2_XS, 10240, 2560},
                           {DType::Q2_K, 10240, 2560}};

struct Inputs {
  DeviceBuffer<float> x;
  DeviceBuffer<std::int8_t> q;
  DeviceBuffer<float> d;
  DeviceBuffer<std::int32_t> s, bad;
  Inputs(std::size_t rows, std::size_t cols, cudaStream_t stream)
      : x(rows * cols), q(rows * cols), d(rows * cols / 32), s(rows * cols / 16), bad(1) {
    std::vector<float> values(rows * cols);
    std::mt19937 random(7);
    std::uniform_real_distribution<float> draw(-1.0F, 1.0F);
    for (float& v : values) v = draw(random);
    x.upload(values.data());
    launch_quantize(x.get(), cols, rows, cols, q.get(), d.get(), s.get(), bad.get(), stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  DeviceQuant quant() const { return {q.get(), d.get(), s.get()}; }
};

class Report {
 public:
  explicit Report(const Options& options)
      : peak_(options.peak),
        csv_(options.csv, machine_info(options.machine),
             {"what", "type", "rows", "cols", "width", "us", "tops", "share_of_half_peak"}) {}
  void add(const std::string& what, const std::string& type, std::size_t rows, std::size_t cols, std::size_t width,
           double macs, double seconds) {
    const double tops = 2e-12 * macs / seconds, share = tops / (peak_ / 2);
    fmt::print("{:8} {:16} {:>6} x {:<6} w {:5}: {:9.1f} us {:6.1f} TOPS, {:4.1f} % of half the peak\n", what, type,
               rows, cols, width, 1e6 * seconds, tops, 100 * share);
    std::fflush(stdout);
    csv_.row({what, type, fmt::to_string(rows), fmt::to_string(cols), fmt::to_string(width),
              fmt::format("{:.2f}", 1e6 * seconds), fmt::format("{:.1f}", tops), fmt::format("{:.4f}", share)});
  }

 private:
  double peak_;
  CsvFile csv_;
};

void run_matrix(const Case& c, const Options& options, Timer& timer, Report& report) {
  const std::vector<std::uint8_t> tiles = random_tiles(c.type, c.rows, c.cols);
  DeviceBuffer<std::uint8_t> weights(tiles.size());
  weights.upload(tiles.data());
  const std::size_t most = *std::max_element(options.widths.begin(), options.widths.end());
  const Inputs x(most, c.cols, timer.stream());
  DeviceBuffer<float> y(most * c.rows);
  const TileMatmul product{{c.type, weights.get(), c.rows, c.cols, 1.0F}, y.get(), c.rows};
  for (const std::size_t width : options.widths) {
    const double seconds = timer.time(width > 1000 ? 4 : 20, options.samples, [&](std::size_t) {
      launch_tile_gemm(&product, 1, x.quant(), width, timer.stream());
    });
    report.add("matrix", std::string(dtype_name(c.type)), c.rows, c.cols, width,
               static_cast<double>(c.rows * c.cols * width), seconds);
  }
}

// `batch` experts with the pairs of a pass of `rows` rows that uses 10 of 512.
void run_experts(DType gate_up, DType down, std::size_t rows, int batch_size, const Options& options, Timer& timer,
                 Report& report) {
  constexpr std::size_t kFf = 640, kHidden = 2560, kExperts = 512, kUsed = 10;
  ExpertBank bank;
  bank.gate = {nullptr, gate_up, kFf, kHidden, 1.0F, {}};
  bank.up = bank.gate;
  bank.down = {nullptr, down, kHidden, kFf, 1.0F, {}};
  const ExpertBlobLayout layout = ExpertBlobLayout::of(bank);
  std::vector<std::uint8_t> blob(layout.bytes);
  for (const ExpertBlobLayout::Part* part : {&layout.gate, &layout.up, &layout.down}) {
    const std::vector<std::uint8_t> tiles = random_tiles(part->type, part->rows, part->cols);
    std::copy(tiles.begin(), tiles.end(), blob.begin() + static_cast<std::ptrdiff_t>(part->offset));
  }
  DeviceBuffer<std::uint8_t> blobs(static_cast<std::size_t>(batch_size) * layout.bytes);
  ExpertBatch batch;
  for (; batch.count < batch_size; ++batch.count) {
    batch.blob[batch.count] = blobs.get() + static_cast<std::size_t>(batch.count) * layout.bytes;
    batch.expert[batch.count] = batch.count;
    CUDA_CHECK(cudaMemcpy(const_cast<std::uint8_t*>(batch.blob[batch.count]), blob.data(), blob.size(),
                          cudaMemcpyHostToDevice));
  }
  const std::size_t pairs = rows * kUsed;
  std::vector<std::int32_t> routes(pairs);
  std::mt19937 random(3);
  std::size_t mine = 0;
  for (auto& e : routes) {
    e = static_cast<std::int32_t>(random() % kExperts);
    mine += e < batch_size ? 1 : 0;
  }
  DeviceBuffer<std::int32_t> expert(pairs);
  expert.upload(routes.data());
  DeviceBuffer<std::uint8_t> memory(gemm_scratch_bytes(pairs, kFf, kExperts));
  const GemmScratch scratch = make_gemm_scratch(memory.get(), pairs, kFf, kExperts);
  CUDA_CHECK(cudaMemset(scratch.bad, 0, pairs * 4));
  const Inputs x(rows, kHidden, timer.stream());
  DeviceBuffer<float> y(pairs * kHidden);
  GemmExperts experts;
  experts.layout = &layout;
  experts.x = x.quant();
  experts.used = kUsed;
  experts.y = y.get();
  experts.y_stride = kHidden;
  const double sort = timer.time(20, options.samples, [&](std::size_t) {
    launch_sort_pairs(expert.get(), pairs, kExperts, scratch.sorted, timer.stream());
  });
  const double seconds = timer.time(10, options.samples, [&](std::size_t) {
    launch_gemm_experts(experts, batch, pairs * static_cast<std::size_t>(batch_size) / kExperts, scratch,
                        timer.stream());
  });
  report.add(fmt::format("{}exp", batch_size), fmt::format("{}+{}", dtype_name(gate_up), dtype_name(down)), kFf,
             kHidden, rows, static_cast<double>(3 * kFf * kHidden * mine), seconds);
  fmt::print("         sorting {} pairs {:.1f} us\n", pairs, 1e6 * sort);
}

int run(const Options& options) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    fail_input("no CUDA device here. Fix: run this where there is one");
  load_tile_kernels();
  Timer timer;
  Report report(options);
  for (const Case& c : kCases) run_matrix(c, options, timer, report);
  for (const std::size_t rows : {std::size_t{512}, std::size_t{4096}})
    for (const int batch : {16, 32, 64}) {
      run_experts(DType::IQ3_XXS, DType::IQ4_NL, rows, batch, options, timer, report);
      if (batch == 64) run_experts(DType::Q4_K, DType::IQ4_NL, rows, batch, options, timer, report);
    }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  CLI::App app{"Products of many rows on the card, as a share of its int8 peak"};
  tandem::bench::Options options;
  app.add_option("--widths", options.widths, "activation rows")->delimiter(',')->check(CLI::Range(17, 8192));
  app.add_option("--samples", options.samples, "samples of a median")->check(CLI::PositiveNumber);
  app.add_option("--peak", options.peak, "int8 peak of the card, 1e12 operations a second")->capture_default_str();
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
  CLI11_PARSE(app, argc, argv);
  return tandem::bench::guarded_main("bench_gpu_gemm", [&] { return tandem::bench::run(options); });
}
