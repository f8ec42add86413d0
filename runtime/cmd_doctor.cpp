#include "runtime/cmd_doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>

#include "placement/check.h"
#include "placement/files.h"
#include "runtime/disk_probe.h"
#include "runtime/environment.h"
#include "runtime/output.h"
#include "runtime/progress.h"
#include "runtime/system_facts.h"

namespace tandem {
namespace {

struct DoctorOptions {
  std::filesystem::path out, disk_dir = ".";
  std::string name;
  bool json = false, quick = false;
};

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "this machine";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

// Three digits, more would only be noise; by way of decimal text, so that the file shows no binary fractions.
double tidy(double value) {
  return std::stod(fmt::format("{:.2e}", value));
}

// Where the profile goes; empty when no place is known.
std::filesystem::path profile_path(const DoctorOptions& options) {
  if (!options.out.empty()) return options.out;
  const std::filesystem::path folder = user_state_folder();
  if (folder.empty()) return {};
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  return folder / "hardware.yaml";
}

DoctorReport measure(const DoctorOptions& options, const MachineProbes& probes) {
  DoctorReport report;
  report.system = read_system_facts(probes.first_processor());
  Hardware& hardware = report.hardware;
  hardware.name = options.name.empty() ? host_name() : options.name;
  hardware.source = fmt::format("measured {} by tandem doctor{}", today(), options.quick ? " --quick" : "");
  hardware.cpu = probes.cpu();
  hardware.cpu.model = report.system.cpu_model;
  hardware.ram.total = report.system.ram_usable();
  hardware.ram.available = report.system.ram_available;
  hardware.ram.lockable = report.system.lockable;
  hardware.ram.huge_pages = report.system.huge_pages == "always" || report.system.huge_pages == "madvise";

  // The disk comes first: the quiet machine is left for what counts most.
  {
    Progress progress("Measuring the disk", "steps");
    DiskPlan plan;
    if (options.quick) {
      plan.file_bytes = 64 << 20;
      plan.random_seconds = plan.large_seconds = 0.2;
    }
    const DiskResult disk =
        probe_disk(options.disk_dir, plan, [&](auto done, auto all) { progress.update(done, all); });
    report.disk = disk.facts;
    hardware.disk = {tidy(disk.rates.random_read_mbps), tidy(disk.rates.large_read_gbps)};
  }
  {
    Progress progress("Measuring RAM", "worker counts");
    constexpr std::size_t kShare = 4;  // of what is available, at most
    const auto most = static_cast<std::size_t>(report.system.ram_available) / kShare;
    hardware.ram.read_gbps =
        probes.read_gbps(most, options.quick, [&](auto done, auto all) { progress.update(done, all); });
    for (auto& [workers, rate] : hardware.ram.read_gbps) rate = tidy(rate);
  }
  hardware.gpu = probes.gpu(&report.gpu_missing);
  if (probes.cards) report.cards = probes.cards();
  report.findings = diagnose(hardware, report.system, report.disk, report.gpu_missing);
  return report;
}

int run_doctor(const DoctorOptions& options, const MachineProbes& probes) {
  // Opened before the work begins, so that a path that cannot be written is known at once.
  const std::filesystem::path path = profile_path(options);
  std::optional<AtomicFile> file;
  if (!path.empty()) file.emplace(path, options.out.empty() ? path.string() : "--out " + path.string());
  DoctorReport report = measure(options, probes);
  if (file) {
    file->write(
        "# cpu.expert_efficiency and cpu.row_cost are defaults: bench_experts measures them for a type of weights.\n");
    file->write(hardware_yaml(report.hardware));
    file->finish();
    load_hardware(path);  // what was written can be read
    report.profile = path.string();
  }
  write_stdout(options.json ? doctor_json(report) : doctor_text(report));
  return 0;
}

}  // namespace

void add_doctor_command(CLI::App& app, const std::function<MachineProbes()>& make_probes,
                        std::function<int()>& action) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand("doctor", "Measure this machine and say what is wrong on it");
  command->add_option("--out", options->out,
                      "Hardware profile to write (YAML); default hardware.yaml in tandem's state folder");
  command->add_option("--disk-dir", options->disk_dir, "Folder on the disk to measure: where the model is")
      ->capture_default_str();
  command->add_option("--name", options->name, "Name of the machine in the profile; default the host name");
  command->add_flag("--json", options->json, "The report as one JSON object");
  command->add_flag("--quick", options->quick, "Shorter measurements, less exact");
  command->footer(
      "Examples:\n"
      "  tandem doctor\n"
      "  tandem doctor --disk-dir ~/models --out my-pc.yaml");
  command->callback([options, &make_probes, &action] {
    action = [options, &make_probes] { return run_doctor(*options, make_probes()); };
  });
}

}  // namespace tandem
