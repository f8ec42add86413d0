// A round on two sides: passes of w rows of forced (random) text with a share of the experts on the card, and what they
// consist of: bytes of each side over its measured roof, stages on the card, the crew, and what the cost model
// predicts.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "bench/bench.h"
#include "bench/card_run.h"
#include "bench/forced_text.h"
#include "bench/forecast.h"
#include "bench/pass_bytes.h"
#include "bench/read_roof.h"
#include "runtime/expert_store.h"
#include "runtime/output.h"
#include "runtime/plan_report.h"
#include "runtime/timeline.h"

namespace tandem::bench {
namespace {

struct Options : CardOptions {
  Options() { residency = {1.0}; }
  std::string routes, hardware, timeline;
  std::size_t passes = 40, prompt = 64;
  std::vector<std::size_t> widths{1, 4};
  bool graphs = true, early = true;
  std::string fetch_ahead = "auto";
  FetchAhead how() const {
    return fetch_ahead == "auto" ? FetchAhead::kAuto : fetch_ahead == "on" ? FetchAhead::kOn : FetchAhead::kOff;
  }
};

void add_flags(CLI::App& app, Options& options) {
  add_card_flags(app, options);
  app.add_option("--passes", options.passes, "passes for every figure")->check(CLI::PositiveNumber);
  app.add_option("--prompt", options.prompt, "tokens read before")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--widths", options.widths, "rows of a pass, 1 to 16")->delimiter(',')->check(CLI::Range(1, 16));
  app.add_option("--routes", options.routes,
                 "how routes fall, for the prediction; default what --census says, else evenly");
  app.add_option("--hardware", options.hardware,
                 "efficiencies and fixed costs for the prediction (YAML); bandwidths are measured here");
  app.add_flag("--no-graphs{false}", options.graphs, "launch every operation anew");
  app.add_flag("--no-early-starts{false}", options.early, "every kernel waits for the end of the one before");
  app.add_option("--fetch-ahead", options.fetch_ahead, "experts that will probably be asked for: auto, on or off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--timeline", options.timeline,
                 "spans of all threads, as a trace for Perfetto or chrome://tracing, to this file");
  app.footer("Example:\n  bench_round six.gguf --widths 1,2,4,8 --residency 0.8,0.92,1 --stages --csv round.csv");
}

// Of this process, as the system tells; 0 when it does not.
double huge_page_gigabytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("AnonHugePages:")) return std::stod(line.substr(14)) * 1024 / 1e9;
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Time of a round with experts on a card and beside it", "bench_round");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  const MachineInfo machine = machine_info(options.machine);
  if (options.workers == 0) options.workers = machine.cpus.size();
  CsvFile csv(options.csv, machine,
              {"model", "workers", "residency", "w", "ms_median", "ms_p95", "card_mb", "crew_mb", "misses", "crew_ms",
               "card_gbs", "crew_gbs", "bound_ms", "over_bound", "predicted_ms", "hit_rate"});
  write_stderr(busy_warning(machine));
  if (!options.timeline.empty()) Timeline::start();

  std::optional<Hardware::Gpu> card = need_card(options.device);
  Hardware hardware = options.hardware.empty() ? known_hardware() : load_hardware(options.hardware);
  hardware.ram.read_gbps.clear();
  if (hardware.gpu) {
    hardware.gpu->copy_gbps = card->copy_gbps;
    hardware.gpu->pcie_to_card_gbps = card->pcie_to_card_gbps;
    hardware.gpu->pcie_from_card_gbps = card->pcie_from_card_gbps;
    card = hardware.gpu;
  }
  hardware.cpu.performance_cores = static_cast<int>(options.workers);
  {
    HugeBuffer buffer(cold_bytes(machine));
    WorkerTeam team(options.workers, machine.cpus);
    write_noise(team, buffer, 1);
    hardware.ram.read_gbps[static_cast<int>(options.workers)] = measure_read_roof(team, buffer, kRoofPlan).median / 1e9;
  }
  hardware.gpu = card;
  const double card_roof = card->copy_gbps * 1e9;
  const double crew_roof = hardware.ram.read_gbps.begin()->second * 1e9;
  const Model model = Model::open(options.model, {}, MtpPolicy::kOff);
  const PassBytes bytes = pass_bytes(model);
  PlanInput input = forecast_input(model, hardware, options.routes.empty() ? options.census : options.routes);
  input.policy.adapt.fetch_ahead = options.how();
  const CostModel costs(input);
  const std::string name = run_label(options);

  for (const double residency : options.residency) {
    GpuOptions gpu;
    gpu.device = options.device;
    gpu.graphs = options.graphs;
    gpu.early_starts = options.early;
    const std::unique_ptr<Ops> ops = card_with_crew(gpu, options.workers);
    LoadOptions load;
    load.placement = run_placement(model, options, residency);
    load.fetch_ahead = options.how();
    load.fetch_seconds = card->fetch_us * 1e-6;
    const auto load_start = std::chrono::steady_clock::now();
    Pipeline pipeline(model, *ops, std::max(kMaxWindow, options.prompt), load);
    const double loaded = std::chrono::duration<double>(std::chrono::steady_clock::now() - load_start).count();
    write_stdout(fmt::format(
        "{}: {} layers, {:.0f} % of the experts on the card, {}; loaded in {:.1f} s ({:.1f} GB on the card, {:.1f} in "
        "RAM, {:.1f} of the process in huge pages); read roofs {:.0f} and {:.1f} GB/s\n",
        name, model.shape.layers, 100 * residency, ops->describe(), loaded,
        static_cast<double>(pipeline.experts()->card_bytes()) / 1e9,
        static_cast<double>(pipeline.experts()->ram_bytes()) / 1e9, huge_page_gigabytes(), card_roof / 1e9,
        crew_roof / 1e9));
    for (const std::size_t width : options.widths) {
      ForcedText text(pipeline, options.prompt, width, options.passes);
      ExpertCounts before;
      FetchCounts unfetched;
      ops->time_stages(false);
      const Summary summary = summarise(text.run([&] {
        before = pipeline.experts()->stats().decode;
        unfetched = ops->fetching()->counts();
      }));
      const FetchCounts fetched = ops->fetching()->counts();
      const ExpertCounts counts = pipeline.experts()->stats().decode - before;
      const auto rounds = static_cast<double>(std::max<std::uint64_t>(1, counts.rounds));
      const double hit_bytes = static_cast<double>(counts.hit_bytes) / rounds;
      const double crew_bytes = static_cast<double>(counts.bytes) / rounds - hit_bytes;
      const double card_bytes = static_cast<double>(bytes.dense + bytes.head) + hit_bytes;
      const double bound = std::max(card_bytes / card_roof, crew_bytes / crew_roof);
      ForcedText(pipeline, options.prompt, width, options.passes).run([&] { ops->time_stages(true); });
      const std::vector<Ops::StageTime> stages = ops->stage_times();
      const auto passes = static_cast<double>(options.passes);
      double crew_ms = 0;
      for (const Ops::StageTime& stage : stages)
        if (stage.stage.starts_with("crew")) crew_ms = stage.seconds / passes * 1e3;
      const double guess =
          costs.known()
              ? forecast(costs, costs.loads(*load.placement, static_cast<int>(width) - 1), width, 0).seconds * 1e3
              : 0.0;
      write_stdout(
          fmt::format("  w {:2}: {:7.3f} ms (p95 {:.3f}); card {:.0f} MB, crew {:.0f} MB ({:.1f} misses, hit rate "
                      "{:.3f}, computing "
                      "{:.2f} ms); bound {:.3f} ms, {:.2f} times it; predicted {:.3f} ms\n",
                      width, summary.median * 1e3, summary.p95 * 1e3, card_bytes / 1e6, crew_bytes / 1e6,
                      static_cast<double>(counts.misses) / rounds, counts.hit_rate(), crew_ms, bound * 1e3,
                      summary.median / bound, guess));
      if (const std::uint64_t copies = fetched.copies - unfetched.copies; copies > 0)
        write_stdout(fmt::format(
            "        fetched ahead {:.1f}, of them {:.1f} asked for; one saves the crew {:.1f} us{}\n",
            static_cast<double>(copies) / rounds, static_cast<double>(fetched.asked - unfetched.asked) / rounds,
            ops->fetching()->gain() * 1e6, ops->fetching()->on() ? "" : "; now off"));
      if (options.stages)
        for (const Ops::StageTime& stage : stages)
          write_stdout(fmt::format("        {:24} {:8.4f} ms a pass, {:6.2f} us each\n", stage.stage,
                                   stage.seconds / passes * 1e3,
                                   stage.count == 0 ? 0.0 : stage.seconds / static_cast<double>(stage.count) * 1e6));
      csv.row({name, fmt::format("{}", options.workers), fmt::format("{:.2f}", residency), fmt::format("{}", width),
               fmt::format("{:.4f}", summary.median * 1e3), fmt::format("{:.4f}", summary.p95 * 1e3),
               fmt::format("{:.2f}", card_bytes / 1e6), fmt::format("{:.2f}", crew_bytes / 1e6),
               fmt::format("{:.2f}", static_cast<double>(counts.misses) / rounds), fmt::format("{:.3f}", crew_ms),
               fmt::format("{:.1f}", card_roof / 1e9), fmt::format("{:.1f}", crew_roof / 1e9),
               fmt::format("{:.4f}", bound * 1e3), fmt::format("{:.3f}", summary.median / bound),
               fmt::format("{:.4f}", guess), fmt::format("{:.4f}", counts.hit_rate())});
    }
  }
  if (!options.timeline.empty()) Timeline::write(options.timeline);
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_round", [&] { return tandem::bench::run(argc, argv); });
}
