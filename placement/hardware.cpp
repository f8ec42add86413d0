#include "placement/hardware.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <iterator>

#include "placement/check.h"
#include "placement/files.h"
#include "placement/units.h"
#include "placement/yaml_reader.h"

namespace tandem {
namespace {

constexpr double kMostGbps = 1e5, kMostMicroseconds = 1e6;
constexpr int kMostCores = 100000;
const std::vector<std::string> kIsas{"avx2", "avxvnni", "avx512"};

// Rates by block type. Types are not checked against those that exist: this layer knows none.
void read_rates(const YamlMap& map, const char* name, std::map<std::string, double>& rates) {
  const YamlValue* value = map.find(name);
  if (value == nullptr) return;
  if (value->kind() != YamlValue::Kind::kMap) value->fail("rates by block type", "write TYPE: GB/s, one a line");
  for (const auto& [key, rate] : value->entries()) rates[key.text()] = rate.number(0.001, kMostGbps);
}

void read_cpu(const YamlValue& value, Hardware::Cpu& cpu) {
  const YamlMap map(value, {"model", "performance_cores", "efficiency_cores", "threads", "l3_groups", "numa_nodes",
                            "isa", "expert_efficiency", "row_cost", "expert_core_gbps", "start_us"});
  map.need("performance_cores");
  map.read("model", cpu.model);
  map.read("performance_cores", cpu.performance_cores, 0, kMostCores);
  map.read("efficiency_cores", cpu.efficiency_cores, 0, kMostCores);
  if (cpu.performance_cores + cpu.efficiency_cores == 0)
    map.need("performance_cores").fail("a core at least, of one kind or the other");
  cpu.threads = cpu.performance_cores + cpu.efficiency_cores;
  map.read("threads", cpu.threads, 1, kMostCores);
  if (cpu.threads < cpu.performance_cores + cpu.efficiency_cores)
    map.need("threads").fail(
        fmt::format("a thread at least for each of the {} cores", cpu.performance_cores + cpu.efficiency_cores));
  map.read("l3_groups", cpu.l3_groups, 0, kMostCores);
  map.read("numa_nodes", cpu.numa_nodes, 0, kMostCores);
  if (const YamlValue* isa = map.find("isa")) cpu.isa = kIsas[isa->word(kIsas)];
  map.read("expert_efficiency", cpu.expert_efficiency, 0.001, 1.0);
  map.read("row_cost", cpu.row_cost, 0.0, 1.0);
  map.read("start_us", cpu.start_us, 0.0, kMostMicroseconds);
  read_rates(map, "expert_core_gbps", cpu.expert_core_gbps);
}

void read_points(const YamlValue& value, std::map<int, double>& points) {
  if (value.kind() != YamlValue::Kind::kMap)
    value.fail("bandwidths by worker count", "write WORKERS: GB/s, one a line");
  if (value.entries().empty()) value.fail_found("one point at least", "none", "write WORKERS: GB/s, one a line");
  for (const auto& [key, rate] : value.entries()) {
    const std::vector<IntRange> workers = key.ranges(kMostCores);
    if (workers[0].first < 1 || workers[0].first != workers[0].last) key.fail("a number of workers, 1 or more");
    points[workers[0].first] = rate.number(0.001, kMostGbps);
  }
}

void read_ram(const YamlValue& value, Hardware::Ram& ram) {
  const YamlMap map(value, {"total", "available", "read_gbps", "lockable", "huge_pages"});
  ram.total = map.need("total").bytes();
  if (ram.total == 0) map.need("total").fail("a size above 0");
  ram.available = ram.total;
  map.read("available", ram.available);
  if (ram.available > ram.total)
    map.need("available").fail(fmt::format("no more than the total of {}", format_bytes(ram.total)));
  read_points(map.need("read_gbps"), ram.read_gbps);
  if (const YamlValue* lockable = map.find("lockable"); lockable != nullptr && !lockable->is_plain("unlimited"))
    ram.lockable = lockable->bytes();
  map.read("huge_pages", ram.huge_pages);
}

void read_disk(const YamlValue& value, Hardware::Disk& disk) {
  const YamlMap map(value, {"random_read_mbps", "large_read_gbps"});
  map.read("random_read_mbps", disk.random_read_mbps, 0.0, 1e6);
  map.read("large_read_gbps", disk.large_read_gbps, 0.0, 1e3);
}

void check_arch(const YamlValue& value) {
  const std::string arch = value.text();
  if (!arch.starts_with("sm_") || arch.size() < 5 || arch.size() > 6 ||
      arch.find_first_not_of("0123456789", 3) != std::string::npos)
    value.fail("sm_ and two or three digits, such as sm_86");
}

Hardware::Gpu read_gpu(const YamlValue& value) {
  const YamlMap map(
      value, {"model", "arch", "vram_total", "vram_free", "copy_gbps", "pcie_to_card_gbps", "pcie_from_card_gbps",
              "handoff_us", "kernel_us", "row_us", "fetch_us", "efficiency", "expert_gbps", "int8_tops"});
  Hardware::Gpu gpu;
  gpu.model = map.need("model").text();
  check_arch(map.need("arch"));
  gpu.arch = map.need("arch").text();
  gpu.vram_total = map.need("vram_total").bytes();
  gpu.vram_free = gpu.vram_total;
  map.read("vram_free", gpu.vram_free);
  if (gpu.vram_free > gpu.vram_total)
    map.need("vram_free").fail(fmt::format("no more than the total of {}", format_bytes(gpu.vram_total)));
  gpu.copy_gbps = map.need("copy_gbps").number(0.001, kMostGbps);
  gpu.pcie_to_card_gbps = map.need("pcie_to_card_gbps").number(0.001, kMostGbps);
  gpu.pcie_from_card_gbps = gpu.pcie_to_card_gbps;
  map.read("pcie_from_card_gbps", gpu.pcie_from_card_gbps, 0.001, kMostGbps);
  map.read("handoff_us", gpu.handoff_us, 0.0, kMostMicroseconds);
  map.read("kernel_us", gpu.kernel_us, 0.0, kMostMicroseconds);
  map.read("row_us", gpu.row_us, 0.0, kMostMicroseconds);
  map.read("fetch_us", gpu.fetch_us, 0.0, kMostMicroseconds);
  map.read("efficiency", gpu.efficiency, 0.001, 1.0);
  read_rates(map, "expert_gbps", gpu.expert_gbps);
  map.read("int8_tops", gpu.int8_tops, 0.0, 1e6);
  return gpu;
}

// The largest unit that leaves a whole number, so that reading it back gives the same.
std::string exact_bytes(std::int64_t bytes) {
  if (bytes != 0 && bytes % kGiB == 0) return fmt::format("{}GiB", bytes / kGiB);
  if (bytes != 0 && bytes % kMiB == 0) return fmt::format("{}MiB", bytes / kMiB);
  if (bytes != 0 && bytes % kKiB == 0) return fmt::format("{}KiB", bytes / kKiB);
  return fmt::format("{}B", bytes);
}

class Writer {
 public:
  void open(const char* key) { out_ << YAML::Key << key << YAML::Value << YAML::BeginMap; }
  void close() { out_ << YAML::EndMap; }
  // Empty texts are left out: the reader takes none.
  void text(const char* key, const std::string& value) {
    if (!value.empty()) out_ << YAML::Key << key << YAML::Value << value;
  }
  template <typename T>
  void number(const char* key, T value) {
    out_ << YAML::Key << key << YAML::Value << fmt::format("{}", value);
  }
  // Nothing where there are none.
  void rates(const char* key, const std::map<std::string, double>& rates) {
    if (rates.empty()) return;
    open(key);
    for (const auto& [type, rate] : rates) number(type.c_str(), rate);
    close();
  }
  void bytes(const char* key, std::int64_t value) { number(key, exact_bytes(value)); }
  YAML::Emitter& out() { return out_; }

 private:
  YAML::Emitter out_;
};

void write_gpu(Writer& w, const Hardware::Gpu& gpu) {
  w.open("gpu");
  w.text("model", gpu.model);
  w.text("arch", gpu.arch);
  w.bytes("vram_total", gpu.vram_total);
  w.bytes("vram_free", gpu.vram_free);
  w.number("copy_gbps", gpu.copy_gbps);
  w.number("pcie_to_card_gbps", gpu.pcie_to_card_gbps);
  w.number("pcie_from_card_gbps", gpu.pcie_from_card_gbps);
  w.number("handoff_us", gpu.handoff_us);
  w.number("kernel_us", gpu.kernel_us);
  w.number("row_us", gpu.row_us);
  w.number("fetch_us", gpu.fetch_us);
  w.number("efficiency", gpu.efficiency);
  w.rates("expert_gbps", gpu.expert_gbps);
  w.number("int8_tops", gpu.int8_tops);
  w.close();
}

}  // namespace

double Hardware::read_gbps(int workers) const {
  CHECK(workers >= 1, "{}", workers);
  const auto next = ram.read_gbps.lower_bound(workers);
  if (ram.read_gbps.empty()) return 0;
  if (next == ram.read_gbps.end()) return ram.read_gbps.rbegin()->second;
  if (next->first == workers) return next->second;
  const auto before = next == ram.read_gbps.begin() ? std::pair<const int, double>(0, 0.0) : *std::prev(next);
  const double share = static_cast<double>(workers - before.first) / static_cast<double>(next->first - before.first);
  return before.second + share * (next->second - before.second);
}

Hardware Hardware::faster(double factor) const {
  CHECK(factor > 0, "{}", factor);
  Hardware h = *this;
  const auto rates = [&](auto& map) {
    for (auto& [key, rate] : map) rate *= factor;
  };
  rates(h.ram.read_gbps);
  rates(h.cpu.expert_core_gbps);
  h.cpu.start_us /= factor;
  h.disk.random_read_mbps *= factor;
  h.disk.large_read_gbps *= factor;
  if (!h.gpu) return h;
  for (double* rate : {&h.gpu->copy_gbps, &h.gpu->pcie_to_card_gbps, &h.gpu->pcie_from_card_gbps, &h.gpu->int8_tops})
    *rate *= factor;
  rates(h.gpu->expert_gbps);
  for (double* cost : {&h.gpu->handoff_us, &h.gpu->kernel_us, &h.gpu->row_us, &h.gpu->fetch_us}) *cost /= factor;
  return h;
}

Hardware load_hardware(const std::filesystem::path& path) {
  const YamlValue file = read_yaml(path, "hardware profile");
  const YamlMap root(file, {"name", "source", "spread", "cpu", "ram", "disk", "gpu"});
  Hardware hardware;
  hardware.name = root.need("name").text();
  hardware.source = root.need("source").text();
  constexpr double kMostSpread = 0.9;
  root.read("spread", hardware.spread, 0.0, kMostSpread);
  read_cpu(root.need("cpu"), hardware.cpu);
  read_ram(root.need("ram"), hardware.ram);
  if (const YamlValue* disk = root.find("disk")) read_disk(*disk, hardware.disk);
  if (const YamlValue* gpu = root.find("gpu")) hardware.gpu = read_gpu(*gpu);
  return hardware;
}

std::string hardware_yaml(const Hardware& hardware) {
  Writer w;
  w.out() << YAML::BeginMap;
  w.text("name", hardware.name);
  w.text("source", hardware.source);
  if (hardware.spread > 0) w.number("spread", hardware.spread);
  const Hardware::Cpu& cpu = hardware.cpu;
  w.open("cpu");
  w.text("model", cpu.model);
  w.number("performance_cores", cpu.performance_cores);
  w.number("efficiency_cores", cpu.efficiency_cores);
  w.number("threads", cpu.threads);
  w.number("l3_groups", cpu.l3_groups);
  w.number("numa_nodes", cpu.numa_nodes);
  w.text("isa", cpu.isa);
  w.number("expert_efficiency", cpu.expert_efficiency);
  w.number("row_cost", cpu.row_cost);
  w.rates("expert_core_gbps", cpu.expert_core_gbps);
  w.number("start_us", cpu.start_us);
  w.close();
  const Hardware::Ram& ram = hardware.ram;
  w.open("ram");
  w.bytes("total", ram.total);
  w.bytes("available", ram.available);
  w.open("read_gbps");
  for (const auto& [workers, rate] : ram.read_gbps) w.number(fmt::format("{}", workers).c_str(), rate);
  w.close();
  w.text("lockable", ram.lockable ? exact_bytes(*ram.lockable) : "unlimited");
  w.number("huge_pages", ram.huge_pages);
  w.close();
  w.open("disk");
  w.number("random_read_mbps", hardware.disk.random_read_mbps);
  w.number("large_read_gbps", hardware.disk.large_read_gbps);
  w.close();
  if (hardware.gpu) write_gpu(w, *hardware.gpu);
  w.out() << YAML::EndMap;
  CHECK(w.out().good(), "{}", w.out().GetLastError());
  return std::string(w.out().c_str(), w.out().size()) + "\n";
}

void save_hardware(const Hardware& hardware, const std::filesystem::path& path) {
  write_file(path, hardware_yaml(hardware));
}

}  // namespace tandem
