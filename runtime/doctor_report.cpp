#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "placement/units.h"
#include "runtime/cmd_doctor.h"

namespace tandem {
namespace {

constexpr std::size_t kColumns = 100;

// Words of `text` after `head`, later lines under the first word.
std::string wrapped(const std::string& head, const std::string& text) {
  std::string result, line = head;
  bool first = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!first && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line.assign(head.size(), ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
    first = false;
    at = end + 1;
  }
  return result + line + "\n";
}

std::string field(const char* name, const std::string& value) {
  return wrapped(fmt::format("  {:<12}", name), value);
}

std::string counted(int count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string cores_text(const Hardware::Cpu& cpu) {
  std::string text = cpu.efficiency_cores == 0 ? counted(cpu.performance_cores, "core", "cores")
                                               : fmt::format("{} performance and {} efficiency cores",
                                                             cpu.performance_cores, cpu.efficiency_cores);
  text += ", " + counted(cpu.threads, "thread", "threads");
  if (cpu.l3_groups > 0) text += ", " + counted(cpu.l3_groups, "L3 group", "L3 groups");
  return text + ", " + counted(cpu.numa_nodes, "NUMA node", "NUMA nodes") + ", " + cpu.isa;
}

std::string ram_text(const DoctorReport& r) {
  return fmt::format("{}, {} available; {} may be locked; huge pages {}", format_bytes(r.hardware.ram.total),
                     format_bytes(r.hardware.ram.available),
                     r.system.lockable ? format_bytes(*r.system.lockable) : "all",
                     r.system.huge_pages.empty() ? "unknown" : r.system.huge_pages);
}

std::string reads_text(const Hardware::Ram& ram) {
  std::string text;
  for (const auto& [workers, rate] : ram.read_gbps)
    text += fmt::format("{}{} {:.1f}", text.empty() ? "" : " | ", workers, rate);
  return text + " GB/s by number of workers";
}

std::string disk_text(const DoctorReport& r) {
  if (!r.disk.problem.empty()) return fmt::format("{}: not measured: {}", r.disk.folder, r.disk.problem);
  return fmt::format("{}{}: {:.0f} MB/s in random reads of 4 KiB, {:.2f} GB/s in large reads", r.disk.folder,
                     r.disk.filesystem.empty() ? "" : " (" + r.disk.filesystem + ")", r.hardware.disk.random_read_mbps,
                     r.hardware.disk.large_read_gbps);
}

std::string gpu_text(const DoctorReport& r) {
  if (!r.hardware.gpu) return "no GPU: " + r.gpu_missing;
  const Hardware::Gpu& gpu = *r.hardware.gpu;
  return fmt::format("{}, {}, {} of {} free; memory {:.0f} GB/s, PCIe {:.1f} GB/s to and {:.1f} GB/s from the card",
                     gpu.model, gpu.arch, format_bytes(gpu.vram_free), format_bytes(gpu.vram_total), gpu.copy_gbps,
                     gpu.pcie_to_card_gbps, gpu.pcie_from_card_gbps);
}

}  // namespace

std::string doctor_text(const DoctorReport& r) {
  std::string text = r.hardware.name + "\n";
  if (!r.hardware.cpu.model.empty()) text += field("processor", r.hardware.cpu.model);
  text += field("cores", cores_text(r.hardware.cpu));
  text += field("RAM", ram_text(r));
  text += field("RAM reads", reads_text(r.hardware.ram));
  text += field("swap", r.system.swap_total == 0 ? "none"
                                                 : fmt::format("{} of {} in use", format_bytes(r.system.swap_used),
                                                               format_bytes(r.system.swap_total)));
  if (!r.system.governor.empty())
    text += field("frequency", fmt::format("governor {}, driver {}", r.system.governor, r.system.scaling_driver));
  text += field("disk", disk_text(r));
  text += field("GPU", gpu_text(r));
  if (r.cards.size() > 1)
    for (const std::string& card : r.cards) text += field("", card);
  const auto problems = static_cast<int>(std::count_if(
      r.findings.begin(), r.findings.end(), [](const Finding& f) { return f.severity == Severity::kProblem; }));
  const int notes = static_cast<int>(r.findings.size()) - problems;
  text += problems == 0 ? "\nNothing is wrong" : "\n" + counted(problems, "problem", "problems");
  text += notes == 0 ? ".\n" : ", " + counted(notes, "note", "notes") + ":\n";
  if (notes == 0 && problems > 0) text.replace(text.size() - 2, 1, ":");
  for (const Finding& finding : r.findings) {
    text += wrapped(finding.severity == Severity::kProblem ? "  ! " : "  - ", finding.what);
    text += wrapped("      cost: ", finding.cost);
    text += wrapped("      cure: ", finding.cure);
  }
  if (!r.profile.empty()) text += "\nWritten to " + r.profile + "\n";
  return text;
}

std::string doctor_json(const DoctorReport& r) {
  using Json = nlohmann::ordered_json;
  const auto optional = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  const Hardware::Cpu& cpu = r.hardware.cpu;
  Json reads = Json::object(), gpu = nullptr, findings = Json::array();
  for (const auto& [workers, rate] : r.hardware.ram.read_gbps) reads[std::to_string(workers)] = rate;
  if (r.hardware.gpu) {
    const Hardware::Gpu& g = *r.hardware.gpu;
    gpu = {{"model", g.model},
           {"arch", g.arch},
           {"vram_total", g.vram_total},
           {"vram_free", g.vram_free},
           {"copy_gbps", g.copy_gbps},
           {"pcie_to_card_gbps", g.pcie_to_card_gbps},
           {"pcie_from_card_gbps", g.pcie_from_card_gbps},
           {"handoff_us", g.handoff_us},
           {"kernel_us", g.kernel_us},
           {"row_us", g.row_us},
           {"fetch_us", g.fetch_us},
           {"efficiency", g.efficiency},
           {"int8_tops", g.int8_tops}};
  }
  for (const Finding& f : r.findings)
    findings.push_back({{"id", f.id},
                        {"severity", f.severity == Severity::kProblem ? "problem" : "note"},
                        {"what", f.what},
                        {"cost", f.cost},
                        {"cure", f.cure}});
  const Json json{{"name", r.hardware.name},
                  {"source", r.hardware.source},
                  {"cpu",
                   {{"model", cpu.model},
                    {"performance_cores", cpu.performance_cores},
                    {"efficiency_cores", cpu.efficiency_cores},
                    {"threads", cpu.threads},
                    {"l3_groups", cpu.l3_groups},
                    {"numa_nodes", cpu.numa_nodes},
                    {"isa", cpu.isa},
                    {"governor", r.system.governor},
                    {"quota", optional(r.system.cpu_quota)},
                    {"load", r.system.load}}},
                  {"ram",
                   {{"total", r.hardware.ram.total},
                    {"available", r.hardware.ram.available},
                    {"installed", r.system.ram_installed},
                    {"limit", optional(r.system.ram_limit)},
                    {"lockable", optional(r.system.lockable)},
                    {"huge_pages", r.system.huge_pages},
                    {"swap_total", r.system.swap_total},
                    {"swap_used", r.system.swap_used},
                    {"read_gbps", reads}}},
                  {"disk",
                   {{"folder", r.disk.folder},
                    {"filesystem", r.disk.filesystem},
                    {"problem", r.disk.problem},
                    {"random_read_mbps", r.hardware.disk.random_read_mbps},
                    {"large_read_gbps", r.hardware.disk.large_read_gbps}}},
                  {"gpu", gpu},
                  {"gpu_missing", r.gpu_missing},
                  {"wsl", r.system.wsl},
                  {"findings", findings},
                  {"profile", r.profile}};
  return json.dump(1) + "\n";
}

}  // namespace tandem
