#include "bench/machine.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <tandem_commit.inc>

#include "cpu/isa.h"
#include "placement/check.h"

namespace tandem::bench {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos && colon + 2 <= line.size())
      return line.substr(colon + 2);
  }
  return "unknown";
}

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  return cpus;
}

// Each cache counts once, whoever shares it.
std::size_t last_level_cache(const std::vector<int>& cpus) {
  std::set<std::string> seen;
  std::size_t total = 0;
  for (const int cpu : cpus) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cache/index3/", cpu);
    const std::string sharers = first_line(folder + "shared_cpu_list");
    if (!sharers.empty() && seen.insert(sharers).second) total += parse_cache_size(first_line(folder + "size"));
  }
  return total;
}

std::string widest_isa() {
  if (cpu_has("avx512vnni")) return "avx512-vnni";
  if (cpu_has("avx512f")) return "avx512";
  if (cpu_has("avxvnni")) return "avx-vnni";
  return cpu_has("avx2") ? "avx2" : "none";
}

}  // namespace

std::size_t parse_cache_size(const std::string& text) {
  std::size_t value = 0, i = 0;
  for (; i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])) != 0; ++i)
    value = value * 10 + static_cast<std::size_t>(text[i] - '0');
  const std::string unit = text.substr(i);
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  return unit.empty() ? value : 0;
}

MachineInfo machine_info(const std::string& name) {
  MachineInfo info;
  std::array<char, 256> host{};
  info.name = name;
  if (name.empty()) info.name = gethostname(host.data(), host.size() - 1) == 0 ? host.data() : "unknown";
  info.cpu = cpu_model();
  info.isa = widest_isa();
  info.cpus = allowed_cpus();
  info.l3_bytes = last_level_cache(info.cpus);
  std::array<double, 1> load{};
  if (getloadavg(load.data(), 1) == 1) info.load = load[0];
  return info;
}

std::string build_commit() {
  return kBuildCommit;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 16> text{};
  CHECK(std::strftime(text.data(), text.size(), "%Y-%m-%d", &local) == 10);
  return text.data();
}

}  // namespace tandem::bench
