// Decodes forced (random) text with a model file: tokens per second for passes of w rows, the bytes of weights that
// such a pass reads, and what share of the read roof that is.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>

#include "bench/bench.h"
#include "bench/forced_text.h"
#include "bench/pass_bytes.h"
#include "bench/read_roof.h"
#include "cpu/cpu_ops.h"
#include "placement/check.h"
#include "runtime/output.h"
#include "runtime/pipeline.h"
#include "runtime/timeline.h"

namespace tandem::bench {
namespace {

struct Options {
  std::string model, csv, machine, isa, timeline;
  double residency = 0;
  std::size_t workers = 0, tokens = 64, prompt = 32, buffer_mib = 0;
  std::vector<std::size_t> widths{1};
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Mean bytes of a pass: one row meets its own experts; the overlap of several rows is counted in a run of its own.
double mean_bytes(Pipeline& pipeline, const PassBytes& bytes, const Options& options, std::size_t width) {
  const ModelShape& shape = pipeline.model().shape;
  const auto used = static_cast<std::size_t>(shape.experts_used);
  std::vector<std::size_t> met(static_cast<std::size_t>(shape.layers), used);
  if (width == 1) return static_cast<double>(bytes.total(1, met));
  double sum = 0, passes = 0;
  pipeline.set_tap([&](std::string_view stage, int layer, std::size_t, ConstRows rows) {
    if (stage != "router_logits" || rows.rows != width) return;
    met[static_cast<std::size_t>(layer)] = count_experts(rows, used);
    if (layer + 1 != shape.layers) return;
    sum += static_cast<double>(bytes.total(width, met));
    passes += 1;
  });
  const std::size_t prompt = width == options.prompt ? width + 1 : options.prompt;  // it is no pass of this width
  ForcedText(pipeline, prompt, width, std::min<std::size_t>(options.tokens / width, 8)).run();
  pipeline.set_tap({});
  return sum / passes;
}

double read_roof(const MachineInfo& machine, std::size_t workers, std::size_t buffer_mib) {
  HugeBuffer buffer(buffer_mib == 0 ? cold_bytes(machine) : buffer_mib << 20);
  WorkerTeam team(workers, machine.cpus);
  write_noise(team, buffer, 1);
  return measure_read_roof(team, buffer, kRoofPlan).median;
}

void add_flags(CLI::App& app, Options& options) {
  app.add_option("MODEL", options.model, "GGUF file")->required();
  app.add_option("--workers", options.workers, "CPU threads; default one per processor");
  app.add_option("--isa", options.isa, "scalar, avx2, avxvnni or avx512; default the best of this processor");
  app.add_option("--tokens", options.tokens, "tokens to decode for every width")->capture_default_str();
  app.add_option("--prompt", options.prompt, "tokens read before")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--widths", options.widths, "rows of a pass, 1 to 16")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--buffer", options.buffer_mib, "MiB for the read roof; default four times the last-level cache");
  app.add_option("--residency", options.residency, "share of each layer's experts on a card that the CPU plays")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--timeline", options.timeline, "write what every thread did, as `tandem run --timeline` does");
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
  app.footer("Example:\n  bench_decode six.gguf --workers 16 --tokens 64 --widths 1,2,4,8 --csv decode.csv");
}

std::string megabytes(double bytes) {
  return fmt::format("{:.2f}", bytes / 1e6);
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Decode speed of a model file", "bench_decode");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  const MachineInfo machine = machine_info(options.machine);
  if (options.workers == 0) options.workers = machine.cpus.size();
  if (options.workers > machine.cpus.size())
    fail_input("--workers: expected at most {} (the processors of this process), found {}", machine.cpus.size(),
               options.workers);
  if (options.tokens < *std::max_element(options.widths.begin(), options.widths.end()))
    fail_input("--tokens: expected at least one pass of the widest of --widths, found {}", options.tokens);
  const std::optional<TileIsa> isa = options.isa.empty() ? best_tile_isa() : find_tile_isa(options.isa);
  if (!isa || !tile_isa_supported(*isa))
    fail_input("--isa: expected scalar, avx2, avxvnni or avx512, as far as this processor has it, found {}",
               options.isa);

  CsvFile csv(options.csv, machine,
              {"model", "file_gb", "ops", "isa", "workers", "w", "passes", "tok_s", "ms_median", "ms_p95", "dense_mb",
               "head_mb", "pass_mb", "gbs", "roof_gbs", "share", "load_s"});
  write_stderr(busy_warning(machine));
  const double roof = read_roof(machine, options.workers, options.buffer_mib);
  const Model model = Model::open(options.model, {}, MtpPolicy::kOff);
  if (!options.timeline.empty()) Timeline::start();
  CpuOps ops({.workers = static_cast<int>(options.workers), .isa = *isa, .pin = true});
  const auto load_start = Clock::now();
  LoadOptions load;
  if (options.residency > 0) {
    load.placement = all_in_ram(model.shape.layers, model.shape.experts);
    const int slots = static_cast<int>(options.residency * model.shape.experts);
    for (int b = 0; b < load.placement->banks; ++b)
      for (int e = 0; e < slots; ++e) load.placement->at(b, e) = Place::kCard;
  }
  Pipeline pipeline(model, ops, std::max(kMaxWindow, options.prompt), load);
  const double load_seconds = seconds_since(load_start);
  const PassBytes bytes = pass_bytes(model);
  std::uint64_t file_bytes = 0;
  for (const GgufShard& shard : model.gguf().shards()) file_bytes += shard.file_bytes;
  const std::string name = std::filesystem::path(options.model).filename().string();
  const double used = model.shape.experts_used;
  write_stdout(fmt::format(
      "{}: {:.2f} GB, {} layers, {} experts; {}, loaded in {:.1f} s\nread roof of {} workers: {:.1f} GB/s\n"
      "one token reads: dense {} MB, head {} MB, {} experts a layer {} MB, looked-up rows {:.1f} kB\n",
      name, static_cast<double>(file_bytes) / 1e9, model.shape.layers, model.shape.experts, ops.describe(),
      load_seconds, options.workers, roof / 1e9, megabytes(static_cast<double>(bytes.dense)),
      megabytes(static_cast<double>(bytes.head)), used,
      megabytes(used *
                static_cast<double>(std::accumulate(bytes.expert.begin(), bytes.expert.end(), std::uint64_t{0}))),
      static_cast<double>(bytes.rows) / 1e3));

  for (const std::size_t width : options.widths) {
    const std::vector<double> seconds = ForcedText(pipeline, options.prompt, width, options.tokens / width).run();
    const double pass = mean_bytes(pipeline, bytes, options, width);
    const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    const Summary summary = summarise(seconds);
    const double tokens_per_second = static_cast<double>(seconds.size() * width) / all, rate = pass / summary.median;
    write_stdout(fmt::format(
        "w {:2}: {:8.2f} tok/s, {:8.3f} ms a pass (p95 {:.3f}), {} MB a pass, {:.2f} GB/s, {:.0f} %{}\n", width,
        tokens_per_second, summary.median * 1e3, summary.p95 * 1e3, megabytes(pass), rate / 1e9, 100 * rate / roof,
        pass < static_cast<double>(machine.l3_bytes) ? " (fits the last-level cache)" : ""));
    csv.row({name, fmt::format("{:.3f}", static_cast<double>(file_bytes) / 1e9), ops.describe(),
             std::string(tile_isa_name(*isa)), fmt::format("{}", options.workers), fmt::format("{}", width),
             fmt::format("{}", seconds.size()), fmt::format("{:.3f}", tokens_per_second),
             fmt::format("{:.4f}", summary.median * 1e3), fmt::format("{:.4f}", summary.p95 * 1e3),
             megabytes(static_cast<double>(bytes.dense)), megabytes(static_cast<double>(bytes.head)), megabytes(pass),
             fmt::format("{:.3f}", rate / 1e9), fmt::format("{:.2f}", roof / 1e9), fmt::format("{:.3f}", rate / roof),
             fmt::format("{:.2f}", load_seconds)});
  }
  if (!options.timeline.empty()) Timeline::write(options.timeline);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_decode", [&] { return tandem::bench::run(argc, argv); });
}
