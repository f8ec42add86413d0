// How far the cost model is off the passes that bench_round timed, row by row of its CSV files; and the constants of
// the machine that fit them best, with the error on the files of weights that a fit has not seen.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "bench/bench.h"
#include "bench/forecast.h"
#include "bench/pass_bytes.h"
#include "bench/placements.h"
#include "placement/check.h"
#include "runtime/output.h"

namespace tandem::bench {
namespace {

// A square of the log of predicted over measured is what a row costs. The crew's computing is timed in passes of its
// own, so it counts less. A constant that is off its described value by a factor of two costs as much as one row that
// is off by a tenth: enough to keep a constant in place that these rows do not determine.
constexpr double kCrewWeight = 0.3, kPriorWeight = 0.02;
constexpr double kGoal = 0.10;
constexpr std::size_t kEvaluations = 4000;

struct Options {
  std::vector<std::string> csv, models, fixed, also;
  std::string hardware, commit;
  bool fit = false, unfetched = false;
  double likeness = kRowLikeness;
};

struct Known {
  std::unique_ptr<Model> model;
  std::string census;
  PlanInput input;
};

struct Row {
  std::string label, file;  // "q3.gguf, at random", "q3.gguf"
  double residency = 0, ms = 0, crew_ms = 0, misses = 0, card_mb = 0, hit_rate = 0, card_gbs = 0, crew_gbs = 0;
  std::size_t rows = 0;
  int workers = 0;
  Known* known = nullptr;
  std::vector<BankLoad> expected, met;  // by the census, and as measured, the same in every layer
};

// A number of the hardware description that may be fitted.
struct Constant {
  std::string name;  // as in the file
  std::function<double&(Hardware&)> of;
  bool share = false;  // from 0 to 1, 0 included; others are above 0 and fitted by their logarithm
};

std::vector<Constant> constants(const Hardware& hardware, const std::set<std::string>& also) {
  std::vector<Constant> all{
      {"gpu.kernel_us", [](Hardware& h) -> double& { return h.gpu->kernel_us; }},
      {"gpu.row_us", [](Hardware& h) -> double& { return h.gpu->row_us; }},
      {"gpu.handoff_us", [](Hardware& h) -> double& { return h.gpu->handoff_us; }},
      {"cpu.start_us", [](Hardware& h) -> double& { return h.cpu.start_us; }},
      {"cpu.expert_efficiency", [](Hardware& h) -> double& { return h.cpu.expert_efficiency; }},
  };
  // Rates of kernels, which benchmarks of their own measure: left alone, but for those that are named.
  const auto rates = [&](const char* name, const std::map<std::string, double>& map, auto&& of) {
    for (const auto& [type, rate] : map)
      if (also.count(name + type) != 0)
        all.push_back({name + type, [of, type = type](Hardware& h) -> double& { return of(h).at(type); }});
  };
  rates(
      "cpu.expert_core_gbps.", hardware.cpu.expert_core_gbps,
      [](Hardware & h) -> auto& { return h.cpu.expert_core_gbps; });
  rates(
      "gpu.expert_gbps.", hardware.gpu->expert_gbps, [](Hardware & h) -> auto& { return h.gpu->expert_gbps; });
  return all;
}

std::vector<Row> read_rows(const Options& options, std::map<std::string, Known>& models) {
  std::vector<Row> rows;
  std::set<std::string> unknown;
  for (const std::string& path : options.csv) {
    std::ifstream file(path);
    if (!file) fail_input("{}: expected a CSV file of bench_round, found none that can be read", path);
    std::string line;
    std::getline(file, line);
    std::map<std::string, std::size_t> column;
    for (const std::string& name : csv_fields(line)) column.emplace(name, column.size());
    for (const char* name : {"commit", "model", "workers", "residency", "w", "ms_median", "crew_ms", "misses",
                             "card_mb", "hit_rate", "card_gbs", "crew_gbs"})
      if (column.count(name) == 0)
        fail_input("{}:1: expected a column {}, as bench_round writes it, found none", path, name);
    while (std::getline(file, line)) {
      const std::vector<std::string> fields = csv_fields(line);
      if (fields.size() != column.size())
        fail_input("{}: expected {} fields a line, found: {}", path, column.size(), line);
      const auto text = [&](const char* name) { return fields[column.at(name)]; };
      const auto number = [&](const char* name) { return std::strtod(text(name).c_str(), nullptr); };
      if (!options.commit.empty() && text("commit") != options.commit) continue;
      Row row;
      row.label = text("model");
      row.residency = number("residency");
      row.ms = number("ms_median"), row.crew_ms = number("crew_ms"), row.misses = number("misses");
      row.card_mb = number("card_mb"), row.hit_rate = number("hit_rate");
      row.card_gbs = number("card_gbs"), row.crew_gbs = number("crew_gbs");
      row.rows = static_cast<std::size_t>(number("w"));
      row.workers = static_cast<int>(number("workers"));
      row.file = row.label.substr(0, row.label.find(','));
      const auto known = models.find(row.file);
      if (known == models.end()) {
        unknown.insert(row.file);
        continue;
      }
      row.known = &known->second;
      rows.push_back(std::move(row));
    }
  }
  for (const std::string& file : unknown) write_stdout(fmt::format("{}: left out, no --model of that name\n", file));
  if (rows.empty()) fail_input("{}: expected passes of the models given, found none", fmt::join(options.csv, ", "));
  return rows;
}

// The machine with the bandwidths that were measured beside the row.
Hardware machine_of(const Row& row, const Hardware& described) {
  Hardware hardware = described;
  hardware.ram.read_gbps = {{row.workers, row.crew_gbs}};
  hardware.cpu.performance_cores = row.workers;
  hardware.gpu->copy_gbps = row.card_gbs;
  return hardware;
}

// What the passes of a row met, on average.
std::vector<BankLoad> measured_load(const Row& row, const Model& model, double row_cost) {
  const PassBytes bytes = pass_bytes(model);
  const auto layers = static_cast<double>(bytes.expert.size());
  double expert = 0;
  for (const std::uint64_t size : bytes.expert) expert += static_cast<double>(size) / layers;
  BankLoad load;
  load.card = (row.card_mb * 1e6 - static_cast<double>(bytes.dense + bytes.head)) / expert / layers;
  load.misses = row.misses / layers;
  const double routes = (1 - row.hit_rate) * static_cast<double>(row.rows) * model.shape.experts_used;
  load.work = load.misses + row_cost * std::max(0.0, routes - load.misses);
  return std::vector<BankLoad>(bytes.expert.size(), load);
}

std::vector<PassForecast> forecasts(const std::vector<Row>& rows, const Hardware& hardware,
                                    std::vector<BankLoad> Row::*loads) {
  std::vector<PassForecast> all;
  std::unique_ptr<CostModel> costs;
  const Row* before = nullptr;
  for (const Row& row : rows) {
    if (before == nullptr || before->known != row.known || before->card_gbs != row.card_gbs ||
        before->crew_gbs != row.crew_gbs) {
      row.known->input.hardware = machine_of(row, hardware);
      costs = std::make_unique<CostModel>(row.known->input);
    }
    before = &row;
    all.push_back(forecast(*costs, row.*loads, row.rows, hardware.cpu.start_us));
  }
  return all;
}

double off(double predicted, double measured_ms) {
  return predicted * 1e3 / measured_ms - 1;
}

struct Errors {
  std::size_t rows = 0, good = 0;
  double worst = 0, squares = 0;
  void add(double error) {
    ++rows;
    if (std::abs(error) <= kGoal) ++good;
    squares += error * error;
    if (std::abs(error) > std::abs(worst)) worst = error;
  }
  std::string text() const {
    return fmt::format("{} of {} rows within {:.0f} %, worst {:+.1f} %, root mean square {:.1f} %", good, rows,
                       100 * kGoal, 100 * worst,
                       rows == 0 ? 0.0 : 100 * std::sqrt(squares / static_cast<double>(rows)));
  }
};

// Prints them.
void compare(const std::string& what, const std::vector<Row>& rows, const Hardware& hardware, bool print) {
  Errors passes, crews;
  const std::vector<PassForecast> all = forecasts(rows, hardware, &Row::expected);
  if (print)
    write_stdout(fmt::format("{:40} {:>6} {:>3} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8} {:>8} {:>9}\n", "model", "card",
                             "w", "ms", "predicted", "off", "crew ms", "predicted", "off", "misses", "predicted"));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double error = off(all[i].seconds, row.ms);
    passes.add(error);
    std::string crew;
    if (row.crew_ms > 0) {
      crews.add(off(all[i].crew, row.crew_ms));
      double misses = 0;
      for (const BankLoad& load : row.expected) misses += load.misses;
      crew = fmt::format(" {:9.3f} {:9.3f} {:+6.1f} % {:8.1f} {:9.1f}", row.crew_ms, all[i].crew * 1e3,
                         100 * off(all[i].crew, row.crew_ms), row.misses, misses);
    }
    if (print)
      write_stdout(fmt::format("{:40} {:4.0f} % {:3} {:9.3f} {:9.3f} {:+6.1f} %{}\n", row.label, 100 * row.residency,
                               row.rows, row.ms, all[i].seconds * 1e3, 100 * error, crew));
  }
  if (print) write_stdout(fmt::format("crew:   {}\n", crews.text()));
  Errors met;  // the same without what the census is off
  const std::vector<PassForecast> known = forecasts(rows, hardware, &Row::met);
  for (std::size_t i = 0; i < rows.size(); ++i) met.add(off(known[i].seconds, rows[i].ms));
  write_stdout(fmt::format("{}: {}; with the experts that were met: {}\n", what, passes.text(), met.text()));
}

// The description with its constants where these rows cost least.
Hardware fitted(const std::vector<Row>& rows, const Hardware& described, const std::vector<Constant>& free) {
  Hardware hardware = described;
  std::vector<double> start, steps;
  for (const Constant& constant : free) {
    const double value = constant.of(hardware);
    start.push_back(constant.share ? value : std::log(std::max(value, 1e-3)));
    steps.push_back(constant.share ? (value > 0.5 ? -0.2 : 0.2) : 0.2);
  }
  const std::vector<double> prior = start;
  const auto set = [&](std::span<const double> at) {
    for (std::size_t i = 0; i < free.size(); ++i) {
      double& value = free[i].of(hardware);
      value = free[i].share ? std::clamp(at[i], 0.0, 1.0) : std::exp(at[i]);
    }
    hardware.cpu.expert_efficiency = std::min(1.0, hardware.cpu.expert_efficiency);
  };
  const auto cost = [&](std::span<const double> at) {
    set(at);
    double sum = 0;
    for (std::size_t i = 0; i < free.size(); ++i) {
      const double from = free[i].share ? std::max(0.0, std::abs(at[i] - 0.5) - 0.5) : at[i] - prior[i];
      sum += kPriorWeight * from * from;
    }
    const std::vector<PassForecast> all = forecasts(rows, hardware, &Row::met);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      sum += std::pow(std::log1p(off(all[i].seconds, rows[i].ms)), 2);
      if (rows[i].crew_ms > 0) sum += kCrewWeight * std::pow(std::log1p(off(all[i].crew, rows[i].crew_ms)), 2);
    }
    return sum;
  };
  // A second start from where the first one ended: a simplex may have become flat.
  std::vector<double> at = minimise(cost, start, steps, kEvaluations / 2);
  at = minimise(cost, at, steps, kEvaluations / 2);
  set(at);
  return hardware;
}

void add_flags(CLI::App& app, Options& options) {
  app.add_option("CSV", options.csv, "files of bench_round")->required();
  app.add_option("--model", options.models,
                 "FILE or FILE,CENSUS: a model of the table and how its routes fall; its headers suffice")
      ->required();
  app.add_option("--hardware", options.hardware, "the machine; bandwidths are those measured beside the rows")
      ->required();
  app.add_option("--likeness", options.likeness, "of the rows of a pass (placement/cost_model.h)")
      ->capture_default_str();
  app.add_option("--commit", options.commit, "only rows of this build");
  app.add_flag("--unfetched", options.unfetched, "rows of builds, or runs, that fetched no experts ahead");
  app.add_flag("--fit", options.fit, "look for the constants of the machine that fit best");
  app.add_option("--also", options.also, "rates of kernels to fit as well, such as cpu.expert_core_gbps.IQ3_XXS")
      ->delimiter(',');
  app.add_option("--fixed", options.fixed, "constants that a fit leaves alone, such as gpu.kernel_us")->delimiter(',');
  app.footer(
      "Example:\n  fit_cost_model round.csv --model q3.gguf,q3.census.csv --hardware h200.yaml --commit b300af7 --fit");
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("The cost model beside measured passes", "fit_cost_model");
  add_flags(app, options);
  CLI11_PARSE(app, argc, argv);
  Hardware described = load_hardware(options.hardware);
  if (!described.gpu) fail_input("{}: expected a card, found none", options.hardware);
  std::map<std::string, Known> models;
  for (const std::string& text : options.models) {
    const std::vector<std::string> parts = csv_fields(text);
    Known& known = models[std::filesystem::path(parts[0]).filename().string()];
    known.model = std::make_unique<Model>(Model::open(parts[0], {}, MtpPolicy::kOff));
    if (parts.size() > 1) known.census = parts[1];
    known.input = forecast_input(*known.model, described, known.census);
    known.input.row_likeness = options.likeness;
    if (options.unfetched) known.input.policy.adapt.fetch_ahead = FetchAhead::kOff;
  }
  std::vector<Row> rows = read_rows(options, models);
  for (Row& row : rows) {
    row.known->input.hardware = machine_of(row, described);
    const CostModel costs(row.known->input);
    if (!costs.known())
      fail_input("{}: expected rates to predict with, found no {}", options.hardware, costs.missing());
    const ExpertPlacement placement = row.label.ends_with("hottest first") && !row.known->census.empty()
                                          ? hottest(*row.known->model, row.known->census, row.residency)
                                          : random_placement(*row.known->model, row.residency);
    row.expected = costs.loads(placement, static_cast<int>(row.rows) - 1);
    row.met = measured_load(row, *row.known->model, described.cpu.row_cost);
  }
  compare("passes", rows, described, true);
  if (!options.fit) return 0;

  std::vector<Constant> free = constants(described, {options.also.begin(), options.also.end()});
  for (const std::string& name : options.fixed)
    if (std::erase_if(free, [&](const Constant& c) { return c.name == name; }) == 0)
      fail_input("--fixed {}: expected a constant that can be fitted, found another name", name);
  Hardware best = fitted(rows, described, free);
  write_stdout("\nfitted:\n");
  for (const Constant& constant : free)
    write_stdout(
        fmt::format("  {:32} {:9.3f}   described {:9.3f}\n", constant.name, constant.of(best), constant.of(described)));
  compare("passes", rows, best, true);
  if (models.size() < 2) return 0;
  for (const auto& [name, known] : models) {
    std::vector<Row> seen, unseen;
    for (const Row& row : rows) (row.known == &known ? unseen : seen).push_back(row);
    if (seen.empty() || unseen.empty()) continue;
    compare("predicting " + name + " from the others", unseen, fitted(seen, described, free), false);
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("fit_cost_model", [&] { return tandem::bench::run(argc, argv); });
}
