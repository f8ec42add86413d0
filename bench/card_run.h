// What the benchmarks of a model on a card have in common: flags, the card, the machine of card and crew, and which
// experts are where.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/placements.h"
#include "cpu/cpu_ops.h"
#include "gpu/gpu_ops.h"
#include "placement/check.h"

namespace tandem::bench {

struct CardOptions {
  std::string model, csv, machine, census;
  int device = 0;
  std::size_t workers = 0;
  std::vector<double> residency;
  bool stages = false;
};

inline void add_card_flags(CLI::App& app, CardOptions& options) {
  app.add_option("MODEL", options.model, "GGUF file")->required();
  app.add_option("--device", options.device, "number of the card")->capture_default_str();
  app.add_option("--workers", options.workers, "CPU threads; default one per processor");
  app.add_option("--residency", options.residency, "shares of all experts on the card, drawn at random or by --census")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--census", options.census, "the experts on the card are those it counts most, not random ones");
  app.add_flag("--stages", options.stages, "a table of the stages on the card, from a run of its own");
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
}

// Throws InputError where there is none that can be used.
inline Hardware::Gpu need_card(int device) {
  std::string why_not;
  const std::optional<Hardware::Gpu> card = probe_gpu(device, &why_not);
  if (!card) fail_input("--device {}: expected a usable GPU, but {}", device, why_not);
  return *card;
}

// The card of these options with a crew of that many workers, each on a processor of its own.
inline std::unique_ptr<Ops> card_with_crew(GpuOptions gpu, std::size_t workers) {
  const auto crew = std::make_shared<CpuOps>(CpuOptions{.workers = static_cast<int>(workers), .pin = true});
  gpu.crew = crew;
  gpu.parallel = [crew](std::size_t n, const std::function<void(std::size_t)>& body) { crew->crew().loop(n, body); };
  std::string why_not;
  std::unique_ptr<Ops> ops = make_gpu_ops(gpu, &why_not);
  CHECK(ops != nullptr, "{}", why_not);
  return ops;
}

// "six.gguf, at random"
inline std::string run_label(const CardOptions& options) {
  return std::filesystem::path(options.model).filename().string() +
         (options.census.empty() ? ", at random" : ", hottest first");
}

inline ExpertPlacement run_placement(const Model& model, const CardOptions& options, double residency) {
  return options.census.empty() ? random_placement(model, residency) : hottest(model, options.census, residency);
}

}  // namespace tandem::bench
