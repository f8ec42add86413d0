#include "runtime/system_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

namespace tandem {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::vector<std::string> lines_of(const fs::path& path) {
  std::istringstream text(read_text(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string first_word(const fs::path& path) {
  std::istringstream text(read_text(path));
  std::string word;
  text >> word;
  return word;
}

// The number at the start of a text, spaces before it skipped.
template <typename T>
std::optional<T> number_in(const std::string& text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string::npos) return std::nullopt;
  T value{};
  const auto result = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

// "Name:  value" lines of proc/meminfo, proc/cpuinfo and proc/self/status; the first of each name counts.
std::map<std::string, std::string> fields_of(const fs::path& path) {
  std::map<std::string, std::string> fields;
  for (const std::string& line : lines_of(path)) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    fields.emplace(name, value == std::string::npos ? "" : line.substr(value));
  }
  return fields;
}

void read_meminfo(const fs::path& root, SystemFacts& facts) {
  const std::map<std::string, std::string> fields = fields_of(root / "proc/meminfo");
  const auto bytes = [&fields](const char* name) -> std::int64_t {
    const auto at = fields.find(name);
    return at == fields.end() ? 0 : number_in<std::int64_t>(at->second).value_or(0) * 1024;
  };
  facts.ram_installed = bytes("MemTotal");
  facts.ram_available = bytes("MemAvailable");
  facts.swap_total = bytes("SwapTotal");
  facts.swap_used = facts.swap_total - bytes("SwapFree");
}

// Whether the process may lock memory without limit (CAP_IPC_LOCK).
bool may_lock_all(const fs::path& root) {
  constexpr int kIpcLock = 14;
  const std::map<std::string, std::string> fields = fields_of(root / "proc/self/status");
  const auto at = fields.find("CapEff");
  if (at == fields.end()) return false;
  std::uint64_t mask = 0;  // stays 0 when the text is no number
  std::from_chars(at->second.data(), at->second.data() + at->second.size(), mask, 16);
  return (mask >> kIpcLock & 1) != 0;
}

void read_lock_limit(const fs::path& root, SystemFacts& facts) {
  if (may_lock_all(root)) return;
  constexpr std::string_view kName = "Max locked memory";
  for (const std::string& line : lines_of(root / "proc/self/limits"))
    if (line.starts_with(kName)) facts.lockable = number_in<std::int64_t>(line.substr(kName.size()));  // or "unlimited"
}

// ---- control groups -------------------------------------------------------------------------------------------------

// The folders of a control group, from the process's own up to the root of the hierarchy. Inside a container the path
// may be that of the host: folders that are not there are passed over.
std::vector<fs::path> group_folders(const fs::path& mount, std::string group) {
  std::vector<fs::path> folders;
  for (;;) {
    const fs::path folder = mount / fs::path(group).relative_path();
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) folders.push_back(folder);
    if (group.empty() || group == "/") return folders;
    group = fs::path(group).parent_path().string();
  }
}

struct Groups {
  std::vector<fs::path> unified, memory, cpu;  // folders of version 2, and of two controllers of version 1
};

Groups read_groups(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  Groups groups;
  for (const std::string& line : lines_of(root / "proc/self/cgroup")) {  // "NUMBER:CONTROLLERS:PATH"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") groups.unified = group_folders(mount, path);
    if (controllers.find(",memory,") != std::string::npos) groups.memory = group_folders(mount / "memory", path);
    if (controllers.find(",cpu,") != std::string::npos) groups.cpu = group_folders(mount / "cpu", path);
  }
  return groups;
}

std::int64_t stat_value(const fs::path& path, const std::string& name) {
  for (const std::string& line : lines_of(path))
    if (line.starts_with(name + " ")) return number_in<std::int64_t>(line.substr(name.size())).value_or(0);
  return 0;
}

// One folder's limit and use. Pages of files that were not used lately can be had back.
void apply_memory_group(const fs::path& folder, bool unified, SystemFacts& facts) {
  const auto limit = number_in<std::int64_t>(  // "max" is no number
      first_word(folder / (unified ? "memory.max" : "memory.limit_in_bytes")));
  if (!limit || *limit >= facts.ram_installed) return;
  facts.ram_limit = std::min(*limit, facts.ram_limit.value_or(*limit));
  const auto used =
      number_in<std::int64_t>(first_word(folder / (unified ? "memory.current" : "memory.usage_in_bytes")));
  const std::int64_t freeable = stat_value(folder / "memory.stat", unified ? "inactive_file" : "total_inactive_file");
  const std::int64_t left = std::max<std::int64_t>(0, *limit - used.value_or(0) + freeable);
  facts.ram_available = std::min({facts.ram_available, left, *limit});
}

void apply_cpu_group(std::optional<double> quota, std::optional<double> period, SystemFacts& facts) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return;  // "max", -1: no limit
  const double processors = *quota / *period;
  facts.cpu_quota = std::min(processors, facts.cpu_quota.value_or(processors));
}

void read_control_groups(const fs::path& root, SystemFacts& facts) {
  const Groups groups = read_groups(root);
  for (const fs::path& folder : groups.unified) {
    apply_memory_group(folder, true, facts);
    std::istringstream text(read_text(folder / "cpu.max"));  // "QUOTA PERIOD"
    std::string quota, period;
    text >> quota >> period;
    apply_cpu_group(number_in<double>(quota), number_in<double>(period), facts);
  }
  for (const fs::path& folder : groups.memory) apply_memory_group(folder, false, facts);
  for (const fs::path& folder : groups.cpu)
    apply_cpu_group(number_in<double>(first_word(folder / "cpu.cfs_quota_us")),
                    number_in<double>(first_word(folder / "cpu.cfs_period_us")), facts);
}

// ---- the rest -------------------------------------------------------------------------------------------------------

// Members of a list such as "0-3,8,10-11".
int count_list(const std::string& text) {
  int count = 0;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::optional<int> first = number_in<int>(part);
    if (!first) continue;
    const std::size_t dash = part.find('-');
    count += (dash == std::string::npos ? *first : number_in<int>(part.substr(dash + 1)).value_or(*first)) - *first + 1;
  }
  return count;
}

// The word in brackets: "always [madvise] never".
std::string chosen_word(const std::string& text) {
  const std::size_t open = text.find('['), close = text.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : text.substr(open + 1, close - open - 1);
}

bool contains_microsoft(std::string release) {
  std::transform(release.begin(), release.end(), release.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return release.find("microsoft") != std::string::npos;
}

}  // namespace

SystemFacts read_system_facts(int processor, const fs::path& root) {
  SystemFacts facts;
  const std::map<std::string, std::string> cpuinfo = fields_of(root / "proc/cpuinfo");
  if (const auto model = cpuinfo.find("model name"); model != cpuinfo.end()) facts.cpu_model = model->second;
  facts.online_processors = count_list(read_text(root / "sys/devices/system/cpu/online"));
  facts.load = number_in<double>(first_word(root / "proc/loadavg")).value_or(0);
  read_meminfo(root, facts);
  read_control_groups(root, facts);
  read_lock_limit(root, facts);
  facts.huge_pages = chosen_word(read_text(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  const fs::path frequency = root / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq", processor);
  facts.governor = first_word(frequency / "scaling_governor");
  facts.scaling_driver = first_word(frequency / "scaling_driver");
  facts.wsl = contains_microsoft(read_text(root / "proc/sys/kernel/osrelease"));
  std::error_code ignored;
  facts.nvidia_driver = fs::exists(root / "proc/driver/nvidia/version", ignored);
  return facts;
}

}  // namespace tandem
