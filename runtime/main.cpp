// The command line: parses, wires a machine to a command, and turns every failure into one line and an exit code.
//   0    done
//   1    an unexpected failure of the system
//   2    wrong input: a flag, a file, a prompt (InputError)
//   130  stopped by Ctrl-C
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <clocale>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/float_ops.h"
#include "cpu/isa.h"
#include "cpu/machine_probe.h"
#include "gpu/gpu_ops.h"
#include "placement/check.h"
#include "placement/suggest.h"
#include "placement/units.h"
#include "runtime/cmd_bench.h"
#include "runtime/cmd_census.h"
#include "runtime/cmd_chat.h"
#include "runtime/cmd_doctor.h"
#include "runtime/cmd_eval.h"
#include "runtime/cmd_inspect.h"
#include "runtime/cmd_plan.h"
#include "runtime/cmd_profile.h"
#include "runtime/cmd_replay.h"
#include "runtime/cmd_run.h"
#include "runtime/output.h"

namespace tandem {
namespace {

constexpr int kExitInput = 2;

void require_cpu() {
  const std::string missing = missing_cpu_features();
  if (missing.empty()) return;
  fail_input(
      "processor: expected AVX2, FMA and F16C (Intel from 2013, AMD from 2015 on), found one without {}. Fix: use "
      "another machine, or let the virtual machine pass these features through",
      missing);
}

// The number N of "cuda:N", or -1.
int cuda_device(const std::string& name) {
  constexpr std::string_view kPrefix = "cuda:";
  const std::string digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : std::string{};
  if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoi(digits);
}

TileIsa cpu_isa(const EngineOptions& options) {
  if (options.isa == "auto") return best_tile_isa();
  const std::optional<TileIsa> isa = find_tile_isa(options.isa);
  if (!isa) fail_input("--isa: expected auto, scalar, avx2, avxvnni or avx512, found \"{}\"", options.isa);
  if (!tile_isa_supported(*isa))
    fail_input("--isa {}: expected a processor that has it, found one without. Fix: --isa auto (here {})", options.isa,
               tile_isa_name(best_tile_isa()));
  return *isa;
}

CpuOptions cpu_options(const EngineOptions& options) {
  return {.workers = options.workers,
          .suggested = options.suggested_workers,
          .isa = cpu_isa(options),
          .pin = options.pin,
          .cores = options.cores};
}

std::unique_ptr<Ops> make_cpu_machine(const EngineOptions& options) {
  return make_cpu_ops(cpu_options(options));
}

// The card with the CPU as its crew; null with the reason when card number `device` cannot be used.
std::unique_ptr<Ops> make_gpu_machine(const EngineOptions& options, int device, std::string* why_not) {
  const std::vector<GpuCard> cards = list_gpus(why_not);
  if (cards.empty()) return nullptr;
  const auto crew = std::make_shared<CpuOps>(cpu_options(options));
  GpuOptions gpu;
  gpu.device = device;
  gpu.graphs = options.graphs;
  gpu.verify_experts = options.verify_experts;
  gpu.crew = crew;
  gpu.parallel = [crew](std::size_t n, const std::function<void(std::size_t)>& body) { crew->crew().loop(n, body); };
  return make_gpu_ops(gpu, why_not);
}

std::unique_ptr<Ops> make_ops(const EngineOptions& options) {
  if (options.device == "cpu") return make_cpu_machine(options);
  std::string why_not;
  if (options.device == "auto") {
    if (auto gpu = make_gpu_machine(options, 0, &why_not)) return gpu;
    std::error_code ignored;
    if (std::filesystem::exists("/proc/driver/nvidia/version", ignored)) {
      write_stderr(fmt::format("tandem: note: there is an NVIDIA card, but {}; running on the CPU\n", why_not));
    }
    return make_cpu_machine(options);
  }
  const int device = cuda_device(options.device);
  if (device < 0) fail_input("--device: expected auto, cpu or cuda:N, found \"{}\"", options.device);
  auto gpu = make_gpu_machine(options, device, &why_not);
  if (!gpu) fail_input("--device {}: expected a usable GPU, but {}. Fix: --device cpu", options.device, why_not);
  return gpu;
}

MachineProbes make_probes() {
  MachineProbes probes = cpu_machine_probes();
  probes.gpu = [](std::string* why_not) { return probe_gpu(0, why_not); };
  probes.cards = [] {
    std::string why_not;
    std::vector<std::string> lines;
    for (const GpuCard& card : list_gpus(&why_not))
      lines.push_back(fmt::format("cuda:{}: {}, {} free of {}{}", card.device, card.name,
                                  format_bytes(static_cast<std::int64_t>(card.free_bytes)),
                                  format_bytes(static_cast<std::int64_t>(card.bytes)),
                                  card.problem.empty() ? "" : "; cannot be used: " + card.problem));
    return lines;
  };
  return probes;
}

// The subcommand that was being parsed ("census show"), or the program itself; `name` is how to call it.
const CLI::App& parsed_app(const CLI::App& app, std::string& name) {
  name += (name.empty() ? "" : " ") + app.get_name();
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : parsed_app(*chosen.front(), name);
}

// One line for a command line that cannot be read, with the nearest name when a name is wrong.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  std::string help;
  const CLI::App& command = parsed_app(app, help);
  help += " --help";
  const std::vector<std::string> extras = command.remaining();
  const bool has_commands = !command.get_subcommands({}).empty();
  const auto* extra_error = dynamic_cast<const CLI::ExtrasError*>(&error);
  if (extra_error == nullptr || extras.empty()) return fmt::format("{} (see {})", error.what(), help);

  const std::string given = extras.front().substr(0, extras.front().find('='));
  std::vector<std::string> names;
  if (given.starts_with("-")) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  } else if (has_commands) {
    for (const CLI::App* sub : command.get_subcommands({})) names.push_back(sub->get_name());
  }
  const std::string kind = given.starts_with("-") ? "flag" : has_commands ? "command" : "argument";
  const std::string near = nearest_name(given, names);
  return fmt::format("unknown {} {}{} (see {})", kind, given, near.empty() ? "" : "; did you mean " + near + "?", help);
}

int run_command_line(int argc, char** argv) {
  CLI::App app("Tandem runs Qwen3.8-Flash-Next (GGUF) on one consumer card and the CPU beside it.", "tandem");
  app.footer(
      "Examples:\n"
      "  tandem chat model.gguf\n"
      "  tandem run model.gguf -p 'What is the capital of France?'\n"
      "  tandem inspect model.gguf\n"
      "`tandem COMMAND --help` lists the flags of a command.");
  app.set_version_flag("--version", "tandem " TANDEM_VERSION);
  app.require_subcommand(0, 1);

  const OpsFactory factory = make_ops;
  std::function<int()> action;
  add_chat_command(app, factory, action);
  add_run_command(app, factory, action);
  const OpsFactory reference_factory = [](const EngineOptions& options) { return make_float_ops(options.workers); };
  add_eval_command(app, factory, reference_factory, action);
  add_profile_command(app, factory, action);
  add_bench_command(app, factory, action);
  add_census_command(app, action);
  add_replay_command(app, action);
  const std::function<MachineProbes()> probes = make_probes;
  add_doctor_command(app, probes, action);
  add_plan_command(app, action);
  InspectOptions inspect;
  add_inspect_command(app, inspect)->callback([&] { action = [&inspect] { return run_inspect(inspect, stdout); }; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    fail_input("{}", describe(error, app));
  }
  if (!action) {
    write_stdout(app.help());
    return 0;
  }
  require_cpu();
  return action();
}

int guarded(int argc, char** argv) {
  try {
    return run_command_line(argc, argv);
  } catch (const OutputClosed&) {
    return 0;
  } catch (const InputError& error) {
    write_stderr(fmt::format("tandem: error: {}\n", error.what()));
    return kExitInput;
  } catch (const std::bad_alloc&) {
    write_stderr("tandem: error: memory: expected more of it, found none left. Fix: a smaller --context or model\n");
    return kExitInput;
  } catch (const std::exception& error) {
    write_stderr(fmt::format("tandem: error: {}\n", error.what()));
    return 1;
  }
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  // Character widths for line editing. Only this category: numbers keep their C form everywhere.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX < 4) std::setlocale(LC_CTYPE, "C.UTF-8");
  tandem::ignore_broken_pipes();
  return tandem::guarded(argc, argv);
}
