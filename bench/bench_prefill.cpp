// A prompt on the card: tokens per second for prompts of random text, with a share of the experts on the card, beside
// what PCIe (bytes of the experts that are sent) and the int8 units (half of their peak) would need, and the split by
// stage.
#include <algorithm>
#include <chrono>

#include "bench/bench.h"
#include "bench/card_run.h"
#include "bench/noise.h"
#include "runtime/expert_store.h"
#include "runtime/model_visit.h"
#include "runtime/output.h"
#include "runtime/pipeline.h"

namespace tandem::bench {
namespace {

struct Options : CardOptions {
  Options() { residency = {0.3}; }
  std::size_t chunk = 4096, part = 1024, repeats = 2, stream_rows = 256;
  std::vector<std::size_t> tokens{512, 4096};
  double peak = 1979;
};

void add_flags(CLI::App& app, Options& options) {
  add_card_flags(app, options);
  app.add_option("--tokens", options.tokens, "lengths of prompts")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--chunk", options.chunk, "rows of a pass")->check(CLI::Range(1, 8192))->capture_default_str();
  app.add_option("--part", options.part, "rows of a part of a pass, a multiple of 16")->capture_default_str();
  app.add_option("--repeats", options.repeats, "runs that count; one more comes first")->check(CLI::PositiveNumber);
  app.add_option("--stream-rows", options.stream_rows, "passes of this many rows are sent the experts off the card")
      ->capture_default_str();
  app.add_option("--peak", options.peak, "int8 peak of the card, 1e12 operations a second")->capture_default_str();
  app.footer("Example:\n  bench_prefill full.gguf --tokens 512,4096,32768 --residency 0.3 --stages --csv prefill.csv");
}

// Multiplications of a token with block-format matrices: every dense one of the trunk but the head, and the experts it
// uses.
double token_macs(const Model& model) {
  double macs = 0;
  for_each_matrix(model, [&](const WeightView& view) {
    const bool whole = view.data != model.output.data && view.data != model.token_embd.data;
    if (whole && dtype_info(view.type).kind == DTypeKind::kBlock) macs += static_cast<double>(view.rows * view.cols);
  });
  for_each_bank(model, [&](const ExpertBank& bank) {
    macs +=
        model.shape.experts_used * static_cast<double>(bank.gate.rows * bank.gate.cols + bank.up.rows * bank.up.cols +
                                                       bank.down.rows * bank.down.cols);
  });
  return macs;
}

struct Run {
  Pipeline& pipeline;
  const std::vector<TokenId>& text;
  std::size_t chunk;
  double operator()(std::size_t tokens) const {
    SequenceState state(pipeline.model().shape, StateOptions{tokens + 16, KvType::kF16}, pipeline.ops().memory());
    const auto start = std::chrono::steady_clock::now();
    pipeline.prefill(state, std::span(text).first(tokens), std::min(chunk, tokens), LogitRows::kLast, {});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of prompts on a card with experts on it and beside it", "bench_prefill");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  const MachineInfo machine = machine_info(options.machine);
  if (options.workers == 0) options.workers = machine.cpus.size();
  CsvFile csv(options.csv, machine,
              {"model", "workers", "residency", "chunk", "part", "tokens", "seconds", "tokens_s", "sent_gb", "pcie_gbs",
               "pcie_s", "int8_s", "share_of_bound", "card_gb"});
  write_stderr(busy_warning(machine));
  const double pcie = need_card(options.device).pcie_to_card_gbps * 1e9;
  const Model model = Model::open(options.model, {}, MtpPolicy::kOff);
  const double macs = token_macs(model);
  const std::string name = run_label(options);
  Draws draws(7);
  std::vector<TokenId> text(*std::max_element(options.tokens.begin(), options.tokens.end()));
  for (TokenId& id : text) id = static_cast<TokenId>(draws.below(static_cast<std::size_t>(model.shape.vocab)));

  for (const double residency : options.residency) {
    GpuOptions gpu;
    gpu.device = options.device;
    const std::unique_ptr<Ops> ops = card_with_crew(gpu, options.workers);
    LoadOptions load;
    load.stream_rows = options.stream_rows;
    load.part_rows = options.part;
    load.placement = run_placement(model, options, residency);
    Pipeline pipeline(model, *ops, options.chunk, load);
    const ExpertStore& store = *pipeline.experts();
    double off_card = 0;  // bytes that a pass is sent
    for (int b = 0; b < store.banks(); ++b)
      for (int e = 0; e < model.shape.experts; ++e)
        if (!store.on_card(b, e)) off_card += static_cast<double>(store.layout(b)->bytes);
    write_stdout(fmt::format(
        "{}: {} layers, {:.0f} % of the experts on the card ({:.1f} GB, {:.1f} GB in RAM{}), {}; PCIe {:.1f} GB/s, "
        "{:.2f} G multiplications a token\n",
        name, model.shape.layers, 100 * residency, static_cast<double>(store.card_bytes()) / 1e9,
        static_cast<double>(store.ram_bytes()) / 1e9, store.ram_pinned() ? "" : ", NOT page-locked", ops->describe(),
        pcie / 1e9, macs / 1e9));
    const Run prompt{pipeline, text, options.chunk};
    for (const std::size_t tokens : options.tokens) {
      prompt(std::min(tokens, 2 * options.chunk));
      std::vector<double> seconds;
      for (std::size_t i = 0; i < options.repeats; ++i) seconds.push_back(prompt(tokens));
      const double median = summarise(seconds).median;
      const std::size_t chunk = std::min(options.chunk, tokens), passes = (tokens + chunk - 1) / chunk;
      const double sent = chunk >= options.stream_rows ? off_card * static_cast<double>(passes) : 0.0;
      const double pcie_s = sent / pcie, int8_s = 2 * macs * static_cast<double>(tokens) / (options.peak * 1e12 / 2);
      const double bound = std::max(pcie_s, int8_s);
      write_stdout(
          fmt::format("  {:6} tokens, passes of {} in parts of {}: {:.3f} s, {:.0f} tokens/s; {:.1f} GB sent: {:.3f} s "
                      "on PCIe, int8 "
                      "{:.3f} s at half the peak: {:.0f} % of the bound; card {:.2f} GB\n",
                      tokens, chunk, options.part, median, static_cast<double>(tokens) / median, sent / 1e9, pcie_s,
                      int8_s, 100 * bound / median, static_cast<double>(ops->card_bytes()) / 1e9));
      csv.row({name, fmt::to_string(options.workers), fmt::format("{:.2f}", residency), fmt::to_string(chunk),
               fmt::to_string(options.part), fmt::to_string(tokens), fmt::format("{:.4f}", median),
               fmt::format("{:.1f}", static_cast<double>(tokens) / median), fmt::format("{:.3f}", sent / 1e9),
               fmt::format("{:.2f}", pcie / 1e9), fmt::format("{:.4f}", pcie_s), fmt::format("{:.4f}", int8_s),
               fmt::format("{:.3f}", bound / median),
               fmt::format("{:.3f}", static_cast<double>(ops->card_bytes()) / 1e9)});
      if (!options.stages) continue;
      ops->time_stages(true);
      prompt(tokens);
      for (const Ops::StageTime& stage : ops->stage_times())
        write_stdout(
            fmt::format("        {:24} {:9.2f} ms, {:6} times\n", stage.stage, stage.seconds * 1e3, stage.count));
      ops->time_stages(false);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_prefill", [&] { return tandem::bench::run(argc, argv); });
}
