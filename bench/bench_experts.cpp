// Streams expert matrices from cold memory through the CPU kernels: every block type x instruction set x rows per pass,
// in GB/s of file bytes and as a share of the read roof measured just before. A kernel whose results differ from the
// scalar reference is reported and not timed.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

#include "bench/bench.h"
#include "bench/block_pool.h"
#include "bench/expert_kernels.h"
#include "bench/read_roof.h"
#include "placement/check.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

struct Options {
  std::vector<std::string> types, isas;
  std::vector<std::size_t> widths{1, 2, 4, 5, 8}, workers;
  std::size_t buffer_mib = 0;
  double sample_ms = 5;
  std::string csv, machine;
  SamplePlan plan{.samples = 11};
  bool list = false, warm = false;
};

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--types", options.types, "block types by name; default all that any tile kernel knows")
      ->delimiter(',');
  app.add_option("--isa", options.isas, "row, scalar, avx2, avxvnni, avx512; default all of this processor")
      ->delimiter(',');
  app.add_option("--widths", options.widths, "activation rows per pass, 1 to 16")
      ->delimiter(',')
      ->check(CLI::Range(1, 16));
  app.add_option("--workers", options.workers, "worker counts; default 1 and all processors")->delimiter(',');
  app.add_flag("--warm", options.warm, "one matrix per worker again and again: what the arithmetic alone allows");
  app.add_flag("--list", options.list, "print the kernels that this processor can run");
  app.add_option("--buffer", options.buffer_mib,
                 "MiB of matrices; default four times the last-level cache, 512 to 2048");
  app.add_option("--samples", options.plan.samples, "samples of a median")->check(CLI::PositiveNumber);
  app.add_option("--sample-ms", options.sample_ms, "milliseconds of a sample")->check(CLI::PositiveNumber);
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
  app.footer("Example:\n  bench_experts --types Q4_K,IQ4_NL --isa avx2,avx512 --widths 1,4 --csv experts.csv");
}

// A gate or up matrix [640, 2560]; formats of 32 also serve as down matrices [2560, 640], which 256 do not divide.
MatrixShape shape_of(DType type) {
  return dtype_info(type).block_elems > 128 ? MatrixShape{type, 640, 2560} : MatrixShape{type, 2560, 640};
}

std::vector<DType> chosen_types(const Options& options, const std::vector<ExpertKernel>& kernels) {
  std::vector<DType> types;
  std::string known;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr || info->kind != DTypeKind::kBlock) continue;
    known += known.empty() ? "" : ", ";
    known += info->name;
    const bool packed = std::any_of(kernels.begin(), kernels.end(), [&](const ExpertKernel& kernel) {
      return kernel.packs() && kernel.supports(info->type);
    });
    const bool named = std::find(options.types.begin(), options.types.end(), info->name) != options.types.end();
    if (named || (options.types.empty() && packed)) types.push_back(info->type);
  }
  if (!options.types.empty() && types.size() != options.types.size())
    fail_input("--types: expected names among {}, found {}", known, fmt::join(options.types, ","));
  return types;
}

std::vector<ExpertKernel> chosen_kernels(const Options& options) {
  std::vector<ExpertKernel> all = ExpertKernel::all(), chosen;
  if (options.isas.empty()) return all;
  for (const std::string& name : options.isas) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const ExpertKernel& k) { return k.name() == name; });
    if (found == all.end())
      fail_input("--isa: expected row, scalar, avx2, avxvnni or avx512, as far as this processor has them, found {}",
                 name);
    chosen.push_back(*found);
  }
  return chosen;
}

// The cold buffer: copies of a few different matrices, one after the other, each on a cache line of its own.
class MatrixStream {
 public:
  MatrixStream(const HugeBuffer& buffer, std::size_t stride)
      : buffer_(buffer), stride_(stride), cursor_(buffer.size() / stride) {}

  void fill(WorkerTeam& team, const MatrixShape& shape, const ExpertKernel& kernel,
            const std::vector<std::uint8_t>& files) {
    const std::size_t kinds = files.size() / shape.file_bytes();
    CHECK(count() >= kinds, "{} matrices", count());
    team.run(kinds,
             [&](std::size_t, std::size_t i) { kernel.pack(shape, files.data() + i * shape.file_bytes(), at(i)); });
    team.run(count() - kinds,
             [&](std::size_t, std::size_t i) { std::copy_n(at(i % kinds), kernel.bytes(shape), at(i + kinds)); });
  }
  std::size_t count() const { return buffer_.size() / stride_; }
  std::uint8_t* at(std::size_t i) const { return buffer_.data() + i * stride_; }
  Cursor& cursor() { return cursor_; }

 private:
  const HugeBuffer& buffer_;
  std::size_t stride_;
  Cursor cursor_;
};

Timing time_stream(WorkerTeam& team, MatrixStream& stream, const MatrixShape& shape, const ExpertKernel& kernel,
                   const ActivationRows& x, std::size_t width, const SamplePlan& plan, bool warm) {
  std::vector<std::vector<float>> y(team.workers(), std::vector<float>(width * shape.rows));
  return measure(plan, team.workers(), stream.count(), [&](std::size_t units) {
    const std::size_t first = stream.cursor().take(units);
    return team.run(units, [&](std::size_t worker, std::size_t unit) {
      const std::size_t place = warm ? worker : stream.cursor().at(first, unit);
      kernel.multiply(shape, stream.at(place), x, width, y[worker].data());
    });
  });
}

// Everything one run shares.
struct Bench {
  Options options;
  MachineInfo machine;
  std::vector<ExpertKernel> kernels;
  HugeBuffer buffer;
  CsvFile csv;
  std::map<std::size_t, double> roof;  // bytes per second by worker count, measured before each type
  int wrong = 0;
};

std::vector<std::size_t> chosen_workers(const Options& options, const MachineInfo& machine) {
  std::vector<std::size_t> workers = options.workers;
  if (workers.empty()) workers = {1, machine.cpus.size()};
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  if (workers.front() == 0 || workers.back() > machine.cpus.size())
    fail_input("--workers: expected 1 to {} (the processors of this process), found {}", machine.cpus.size(),
               fmt::join(workers, ","));
  return workers;
}

// Checks one matrix at every width; prints what is wrong.
bool correct(Bench& bench, const MatrixShape& shape, const ExpertKernel& kernel, const std::uint8_t* file,
             const std::uint8_t* matrix, const ActivationRows& x) {
  for (const std::size_t width : bench.options.widths) {
    std::vector<float> y(width * shape.rows);
    kernel.multiply(shape, matrix, x, width, y.data());
    const auto wrong = find_wrong_row(shape, file, x, width, y.data());
    if (!wrong) continue;
    write_stdout(fmt::format("{:8} {:7} WRONG at w = {}: {}; not timed\n", dtype_name(shape.type), kernel.name(), width,
                             *wrong));
    ++bench.wrong;
    return false;
  }
  return true;
}

void time_widths(Bench& bench, WorkerTeam& team, MatrixStream& stream, const MatrixShape& shape,
                 const ExpertKernel& kernel, const ActivationRows& x) {
  const double roof = bench.roof.at(team.workers());
  const auto bytes = static_cast<double>(shape.file_bytes());
  std::string line = fmt::format("{:8} {:7} {:3} workers", dtype_name(shape.type), kernel.name(), team.workers());
  for (const std::size_t width : bench.options.widths) {
    const Timing timing = time_stream(team, stream, shape, kernel, x, width, bench.options.plan, bench.options.warm);
    const double rate = timing.rate(bytes);
    line += fmt::format("  w{} {:6.2f} ({:3.0f} %)", width, rate / 1e9, 100 * rate / roof);
    bench.csv.row({std::string(dtype_name(shape.type)), kernel.name(), fmt::format("{}", shape.rows),
                   fmt::format("{}", shape.cols), fmt::format("{}", width), fmt::format("{}", team.workers()),
                   fmt::format("{}", timing.samples), fmt::format("{:.3f}", rate / 1e9),
                   fmt::format("{:.3f}", timing.slow_rate(bytes) / 1e9),
                   fmt::format("{:.3f}", rate / 1e9 / static_cast<double>(team.workers())),
                   fmt::format("{:.2f}", roof / 1e9), fmt::format("{:.3f}", rate / roof)});
  }
  write_stdout(line + "\n");
}

void run_type(Bench& bench, DType type, const std::vector<std::size_t>& workers) {
  constexpr std::size_t kMatrices = 16, kLine = 64;  // different matrices, so that nothing can be learned by heart
  const MatrixShape shape = shape_of(type);
  const ActivationRows x(*std::max_element(bench.options.widths.begin(), bench.options.widths.end()), shape.cols, 1);
  std::vector<std::uint8_t> files(kMatrices * shape.file_bytes());
  BlockPool(type, 1 / std::sqrt(static_cast<double>(shape.cols)), 1).fill(1, files.data(), files.size());
  bool roof_known = false;
  for (const ExpertKernel& kernel : bench.kernels) {
    if (!kernel.supports(type)) continue;
    MatrixStream stream(bench.buffer, (kernel.bytes(shape) + kLine - 1) / kLine * kLine);
    {
      WorkerTeam team(workers.back(), bench.machine.cpus);
      stream.fill(team, shape, kernel, files);
    }
    if (!correct(bench, shape, kernel, files.data(), stream.at(0), x)) continue;
    for (const std::size_t count : workers) {
      WorkerTeam team(count, bench.machine.cpus);
      if (!roof_known) bench.roof[count] = measure_read_roof(team, bench.buffer, bench.options.plan).median;
      time_widths(bench, team, stream, shape, kernel, x);
    }
    roof_known = true;
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Streams expert matrices through the CPU kernels", "bench_experts");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  options.plan.seconds = options.sample_ms / 1000;
  if (options.list) {
    for (const ExpertKernel& kernel : ExpertKernel::all()) write_stdout(kernel.name() + "\n");
    return 0;
  }

  if (options.warm && !options.csv.empty())
    fail_input("--warm: expected no --csv beside it: files hold cold figures only");
  constexpr std::size_t kLeastMib = 64;  // room for the different matrices
  if (options.buffer_mib != 0 && options.buffer_mib < kLeastMib)
    fail_input("--buffer: expected at least {} MiB, found {}", kLeastMib, options.buffer_mib);
  const MachineInfo machine = machine_info(options.machine);
  const std::size_t bytes = options.buffer_mib == 0 ? cold_bytes(machine) : options.buffer_mib << 20;
  Bench bench{options,
              machine,
              chosen_kernels(options),
              HugeBuffer(bytes),
              CsvFile(options.csv, machine,
                      {"type", "isa", "rows", "cols", "w", "workers", "samples", "gbs", "p95_gbs", "per_core_gbs",
                       "roof_gbs", "share"}),
              {}};
  const std::vector<std::size_t> workers = chosen_workers(options, machine);
  const std::vector<DType> types = chosen_types(options, bench.kernels);
  write_stderr(busy_warning(machine));
  write_stdout(
      fmt::format("{}: {}, {} processors, {}, GB/s of file bytes (share of the read roof)\n", machine.name, machine.cpu,
                  machine.cpus.size(),
                  options.warm ? "one warm matrix per worker" : fmt::format("{} MiB of matrices", bytes >> 20)));
  for (const DType type : types) {
    run_type(bench, type, workers);
    for (const auto& [count, roof] : bench.roof)
      write_stdout(fmt::format("{:8} read roof of {} workers: {:.1f} GB/s\n", dtype_name(type), count, roof / 1e9));
  }
  return bench.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_experts", [&] { return tandem::bench::run(argc, argv); });
}
