// What it costs to be able to take rows back: passes of w rows that are kept in part, against passes that are final.
//
// A pass in a window logs its rows beside the state; keep(n) cuts the logs, and the next pass folds the n rows into the
// state before it goes on. A final pass advances the state at once. Four ways take turns, one pass each, every way on a
// sequence of its own: final, keep(0) (logs, nothing to fold), keep(1), keep(w) (folds all rows). Timed: the pass with
// keep, keep alone, and the scan that holds the fold, inside the machine.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>

#include "bench/bench.h"
#include "bench/rollback.h"
#include "placement/check.h"
#include "runtime/output.h"
#include "runtime/pipeline.h"

namespace tandem::bench {
namespace {

struct Options {
  std::string model, csv, machine;
  std::size_t workers = 0, rounds = 60, prompt = 64;
  std::vector<std::size_t> widths{5};
};

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Cost of rollback: folds, histories and logs, as a share of a round", "bench_rollback");
  app.add_option("MODEL", options.model, "GGUF file")->required();
  app.add_option("--workers", options.workers, "CPU threads; default one per processor");
  app.add_option("--rounds", options.rounds, "passes of each way")->check(CLI::Range(4, 100000))->capture_default_str();
  app.add_option("--prompt", options.prompt, "tokens read before")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--widths", options.widths, "rows of a pass, 2 to 16")->delimiter(',')->check(CLI::Range(2, 16));
  app.add_option("--csv", options.csv, "append the figures to this file");
  app.add_option("--machine", options.machine, "name of the machine in the CSV file; default the host name");
  app.footer("Example:\n  bench_rollback six.gguf --workers 2 --widths 2,5,9 --csv rollback.csv");
  CLI11_PARSE(app, argc, argv);
  const MachineInfo machine = machine_info(options.machine);
  if (options.workers == 0) options.workers = machine.cpus.size();
  CsvFile csv(options.csv, machine,
              {"model", "workers", "w", "rounds", "round_ms", "keep_us", "scan_ms", "scan_no_fold_ms", "scan_final_ms",
               "round_no_fold_ms", "round_final_ms", "state_share"});
  write_stderr(busy_warning(machine));
  const Model model = Model::open(options.model, {}, MtpPolicy::kOff);
  TimedOps ops({.workers = static_cast<int>(options.workers)});
  Pipeline pipeline(model, ops, std::max(kMaxWindow, options.prompt));
  const std::string name = std::filesystem::path(options.model).filename().string();
  write_stdout(fmt::format("{}: {}\n", name, ops.describe()));
  for (const std::size_t width : options.widths) {
    const auto times = measure_rollback(pipeline, ops, {options.rounds, options.prompt, width});
    const auto ms = [&](Way way, std::vector<double> RollbackTimes::*which) { return 1e3 * times[way].median(which); };
    const double round = ms(kKeepAll, &RollbackTimes::round), keep = ms(kKeepAll, &RollbackTimes::keep);
    const double scan = ms(kKeepAll, &RollbackTimes::scan), no_fold = ms(kKeepNone, &RollbackTimes::scan);
    const double final_scan = ms(kFinal, &RollbackTimes::scan);
    const double state = 1e3 * state_work(times);
    write_stdout(fmt::format(
        "w {:2}: round {:.3f} ms with all rows kept ({:.3f} none, {:.3f} one, {:.3f} final); scan {:.3f} ms ({:.3f} "
        "none, {:.3f} one, {:.3f} final); keep {:.1f} us; state work {:.3f} ms, {:.2f} % of the round\n",
        width, round, ms(kKeepNone, &RollbackTimes::round), ms(kKeepOne, &RollbackTimes::round),
        ms(kFinal, &RollbackTimes::round), scan, no_fold, ms(kKeepOne, &RollbackTimes::scan), final_scan, 1e3 * keep,
        state, 100 * state / round));
    csv.row({name, fmt::format("{}", options.workers), fmt::format("{}", width), fmt::format("{}", options.rounds),
             fmt::format("{:.4f}", round), fmt::format("{:.2f}", 1e3 * keep), fmt::format("{:.4f}", scan),
             fmt::format("{:.4f}", no_fold), fmt::format("{:.4f}", final_scan),
             fmt::format("{:.4f}", ms(kKeepNone, &RollbackTimes::round)),
             fmt::format("{:.4f}", ms(kFinal, &RollbackTimes::round)), fmt::format("{:.5f}", state / round)});
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_rollback", [&] { return tandem::bench::run(argc, argv); });
}
