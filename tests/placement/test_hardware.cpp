// Hardware profiles: round trip, defaults, refusals, and the bandwidth between measured points.
#include "placement/hardware.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "placement/check.h"
#include "placement/files.h"
#include "placement/units.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

const std::string kSmall = "name: n\nsource: s\ncpu: {performance_cores: 8}\nram: {total: 64GiB, read_gbps: {8: 40}}\n";

Hardware load(const std::string& text) {
  const testing::TemporaryFolder folder;
  return load_hardware(folder.write("h.yaml", text));
}

std::string refusal(const std::string& text) {
  const testing::TemporaryFolder folder;
  try {
    load_hardware(folder.write("h.yaml", text));
  } catch (const InputError& error) {
    return std::string(error.what()).substr(folder.path().string().size() + 1);
  }
  return {};
}

// No two fields alike, so that none can stand for another.
Hardware full() {
  Hardware h;
  h.name = "a machine: of mine";
  h.source = "measured # 2026-11-29\nsecond line \"quoted\" \xC3\xA9";
  h.spread = 0.125;
  h.cpu = {"AMD Ryzen 9 5900X, 12-Core",       12,  4, 28, 2, 3, "avx512", 0.625, 0.1,
           {{"IQ3_XXS", 4.5}, {"Q4_K", 7.25}}, 11.5};
  h.ram.total = 64 * kGiB - 4097;
  h.ram.available = 48 * kMiB + kKiB;
  h.ram.read_gbps = {{1, 13.5}, {2, 23.0}, {16, 1.0 / 3.0}};
  h.ram.lockable = 8 * kMiB;
  h.ram.huge_pages = true;
  h.disk = {412.5, 3.25};
  h.gpu = Hardware::Gpu{
      "NVIDIA GeForce RTX 3090", "sm_86", 24 * kGiB, 23 * kGiB + 1, 936.2, 26.9, 25.1, 2.5, 0.9, 0.35, 7.5, 0.77,
      {{"IQ3_S", 812.5}},        284,     {}};
  return h;
}

void expect_equal(const Hardware& a, const Hardware& b) {
  EXPECT_EQ(a.spread, b.spread);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.cpu.model, b.cpu.model);
  EXPECT_EQ(a.cpu.performance_cores, b.cpu.performance_cores);
  EXPECT_EQ(a.cpu.efficiency_cores, b.cpu.efficiency_cores);
  EXPECT_EQ(a.cpu.threads, b.cpu.threads);
  EXPECT_EQ(a.cpu.l3_groups, b.cpu.l3_groups);
  EXPECT_EQ(a.cpu.numa_nodes, b.cpu.numa_nodes);
  EXPECT_EQ(a.cpu.isa, b.cpu.isa);
  EXPECT_EQ(a.cpu.expert_efficiency, b.cpu.expert_efficiency);
  EXPECT_EQ(a.cpu.row_cost, b.cpu.row_cost);
  EXPECT_EQ(a.ram.total, b.ram.total);
  EXPECT_EQ(a.ram.available, b.ram.available);
  EXPECT_EQ(a.ram.read_gbps, b.ram.read_gbps);
  EXPECT_EQ(a.ram.lockable, b.ram.lockable);
  EXPECT_EQ(a.ram.huge_pages, b.ram.huge_pages);
  EXPECT_EQ(a.disk.random_read_mbps, b.disk.random_read_mbps);
  EXPECT_EQ(a.disk.large_read_gbps, b.disk.large_read_gbps);
  EXPECT_EQ(a.cpu.expert_core_gbps, b.cpu.expert_core_gbps);
  EXPECT_EQ(a.cpu.start_us, b.cpu.start_us);
  ASSERT_EQ(a.gpu.has_value(), b.gpu.has_value());
  if (!a.gpu) return;
  EXPECT_EQ(a.gpu->model, b.gpu->model);
  EXPECT_EQ(a.gpu->arch, b.gpu->arch);
  EXPECT_EQ(a.gpu->vram_total, b.gpu->vram_total);
  EXPECT_EQ(a.gpu->vram_free, b.gpu->vram_free);
  EXPECT_EQ(a.gpu->copy_gbps, b.gpu->copy_gbps);
  EXPECT_EQ(a.gpu->pcie_to_card_gbps, b.gpu->pcie_to_card_gbps);
  EXPECT_EQ(a.gpu->pcie_from_card_gbps, b.gpu->pcie_from_card_gbps);
  EXPECT_EQ(a.gpu->handoff_us, b.gpu->handoff_us);
  EXPECT_EQ(a.gpu->kernel_us, b.gpu->kernel_us);
  EXPECT_EQ(a.gpu->row_us, b.gpu->row_us);
  EXPECT_EQ(a.gpu->fetch_us, b.gpu->fetch_us);
  EXPECT_EQ(a.gpu->efficiency, b.gpu->efficiency);
  EXPECT_EQ(a.gpu->expert_gbps, b.gpu->expert_gbps);
  EXPECT_EQ(a.gpu->int8_tops, b.gpu->int8_tops);
}

TEST(Hardware, FasterScalesRatesAndFixedCosts) {
  const Hardware base = full(), twice = base.faster(2.0);
  EXPECT_EQ(twice.ram.read_gbps.at(16), 2.0 / 3.0);
  EXPECT_EQ(twice.cpu.expert_core_gbps.at("Q4_K"), 14.5);
  EXPECT_EQ(twice.cpu.start_us, 5.75);
  EXPECT_EQ(twice.disk.large_read_gbps, 6.5);
  EXPECT_EQ(twice.gpu->copy_gbps, 2 * 936.2);
  EXPECT_EQ(twice.gpu->pcie_to_card_gbps, 2 * 26.9);
  EXPECT_EQ(twice.gpu->expert_gbps.at("IQ3_S"), 1625.0);
  EXPECT_EQ(twice.gpu->handoff_us, 1.25);
  EXPECT_EQ(twice.gpu->kernel_us, 0.45);
  EXPECT_EQ(twice.gpu->row_us, 0.175);
  EXPECT_EQ(twice.gpu->fetch_us, base.gpu->fetch_us / 2);
  // Sizes and shares stay.
  EXPECT_EQ(twice.gpu->efficiency, base.gpu->efficiency);
  EXPECT_EQ(twice.cpu.row_cost, base.cpu.row_cost);
  EXPECT_EQ(twice.ram.total, base.ram.total);
}

TEST(Hardware, RoundTrip) {
  const testing::TemporaryFolder folder;
  const auto path = folder.path() / "h.yaml";
  save_hardware(full(), path);
  expect_equal(load_hardware(path), full());

  Hardware other = full();
  other.gpu.reset();
  other.ram.lockable.reset();
  other.ram.huge_pages = false;
  other.ram.available = 0;
  other.cpu.isa.clear();
  other.cpu.model.clear();
  other.name = "true";
  other.source = "~";
  save_hardware(other, path);
  expect_equal(load_hardware(path), other);

  other.ram.lockable = 0;  // nothing may be locked: not the same as no limit
  save_hardware(other, path);
  EXPECT_EQ(load_hardware(path).ram.lockable, 0);
}

// The keys that docs/policies.md lists are those of a profile with everything in it.
TEST(Hardware, TheDocumentHasEveryKey) {
  const std::string path = std::string(TANDEM_SOURCE_DIR) + "/docs/policies.md", text = read_file(path, "document");
  std::set<std::string> listed, written;
  const std::regex key("`(cpu|ram|disk|gpu)\\.(\\w+)`");
  std::istringstream rows(text);
  for (std::string row; std::getline(rows, row);) {
    const std::string cell = row.substr(0, row.find('|', 1));
    if (!cell.starts_with("| `")) continue;
    for (std::sregex_iterator at(cell.begin(), cell.end(), key), end; at != end; ++at)
      listed.insert((*at)[1].str() + "." + (*at)[2].str());
  }
  std::istringstream lines(hardware_yaml(full()));
  std::string part;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t name = line.find_first_not_of(' '), colon = line.find(':');
    if (name == 0) part = line.substr(0, colon);
    if (name == 2) written.insert(part + "." + line.substr(2, colon - 2));
  }
  EXPECT_GT(written.size(), 20U);
  EXPECT_EQ(listed, written);
}

TEST(Hardware, WritesWholeUnits) {
  Hardware h = full();
  h.ram.total = 64 * kGiB;
  const std::string text = hardware_yaml(h);
  EXPECT_NE(text.find("  total: 64GiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  available: 49153KiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  lockable: 8MiB\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  vram_free: 24696061953B\n"), std::string::npos) << text;
}

TEST(Hardware, Defaults) {
  const Hardware h = load(kSmall);
  EXPECT_EQ(h.name, "n");
  EXPECT_EQ(h.cpu.efficiency_cores, 0);
  EXPECT_EQ(h.cpu.threads, 8);
  EXPECT_EQ(h.cpu.isa, "");
  EXPECT_EQ(h.cpu.expert_efficiency, Hardware::Cpu().expert_efficiency);
  EXPECT_EQ(h.cpu.row_cost, Hardware::Cpu().row_cost);
  EXPECT_EQ(h.ram.available, 64 * kGiB);
  EXPECT_FALSE(h.ram.lockable.has_value());
  EXPECT_FALSE(h.ram.huge_pages);
  EXPECT_EQ(h.disk.random_read_mbps, 0);
  EXPECT_FALSE(h.gpu.has_value());
  const Hardware with_gpu =
      load(kSmall + "gpu: {model: m, arch: sm_120, vram_total: 32GiB, copy_gbps: 1792, pcie_to_card_gbps: 50}");
  EXPECT_EQ(with_gpu.gpu->vram_free, 32 * kGiB);
  EXPECT_EQ(with_gpu.gpu->pcie_from_card_gbps, 50);
  EXPECT_EQ(with_gpu.gpu->handoff_us, Hardware::Gpu().handoff_us);
  EXPECT_EQ(with_gpu.gpu->efficiency, Hardware::Gpu().efficiency);
}

TEST(Hardware, BandwidthBetweenPoints) {
  Hardware h;
  EXPECT_EQ(h.read_gbps(4), 0);
  h.ram.read_gbps = {{2, 20}, {4, 50}, {8, 70}};
  EXPECT_DOUBLE_EQ(h.read_gbps(1), 10);  // in proportion below the first
  EXPECT_DOUBLE_EQ(h.read_gbps(2), 20);
  EXPECT_DOUBLE_EQ(h.read_gbps(3), 35);
  EXPECT_DOUBLE_EQ(h.read_gbps(4), 50);
  EXPECT_DOUBLE_EQ(h.read_gbps(7), 65);
  EXPECT_DOUBLE_EQ(h.read_gbps(8), 70);
  EXPECT_DOUBLE_EQ(h.read_gbps(64), 70);
}

TEST(Hardware, Refusals) {
  const std::string gpu = "gpu:\n  model: m\n  vram_total: 24GiB\n  copy_gbps: 936\n  pcie_to_card_gbps: 25\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "h.yaml: expected a hardware profile, found an empty file"},
      {"source: s\n", "h.yaml:1:1: expected the key name, found none. Fix: add it"},
      {"name: n\n", "h.yaml:1:1: expected the key source, found none. Fix: add it"},
      {"name: n\nsource: s\n", "h.yaml:1:1: expected the key cpu, found none. Fix: add it"},
      {"name: n\nsource: s\ncpu:\n  threads: 3\n",
       "h.yaml:4:3: cpu: expected the key performance_cores, found none. Fix: add it"},
      {"name: n\nsource: s\ncpu: {performance_cores: 2}\n",
       "h.yaml:1:1: expected the key ram, found none. Fix: add it"},
      {"name: n\nsource: s\ncpu: {performance_cores: 0}\n",
       "h.yaml:3:26: cpu.performance_cores: expected a core at least, of one kind or the other, found \"0\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4, threads: 3}\n",
       "h.yaml:3:38: cpu.threads: expected a thread at least for each of the 4 cores, found \"3\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4, isa: sse}\n",
       "h.yaml:3:34: cpu.isa: expected avx2, avxvnni or avx512, found \"sse\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4, row_cost: 1.5}\n",
       "h.yaml:3:39: cpu.row_cost: expected a number from 0 to 1, found \"1.5\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4, expert_efficiency: 0}\n",
       "h.yaml:3:48: cpu.expert_efficiency: expected a number from 0.001 to 1, found \"0\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 0}\n",
       "h.yaml:4:14: ram.total: expected a size above 0, found \"0\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, available: 5GiB}\n",
       "h.yaml:4:31: ram.available: expected no more than the total of 4.00 GiB, found \"5GiB\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB}\n",
       "h.yaml:4:6: ram: expected the key read_gbps, found none. Fix: add it"},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, read_gbps: 40}\n",
       "h.yaml:4:31: ram.read_gbps: expected bandwidths by worker count, found \"40\". Fix: write WORKERS: GB/s, one a "
       "line"},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, read_gbps: {}}\n",
       "h.yaml:4:31: ram.read_gbps: expected one point at least, found none. Fix: write WORKERS: GB/s, one a line"},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, read_gbps: {0: 40}}\n",
       "h.yaml:4:32: ram.read_gbps: expected a number of workers, 1 or more, found \"0\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, read_gbps: {1-4: 40}}\n",
       "h.yaml:4:32: ram.read_gbps: expected a number of workers, 1 or more, found \"1-4\""},
      {"name: n\nsource: s\ncpu: {performance_cores: 4}\nram: {total: 4GiB, read_gbps: {4: 0}}\n",
       "h.yaml:4:35: ram.read_gbps.4: expected a number from 0.001 to 100000, found \"0\""},
      {kSmall + "disk: {random: 3}\n",
       "h.yaml:5:8: disk: expected a known key, found \"random\". Fix: did you mean random_read_mbps?"},
      {kSmall + gpu, "h.yaml:6:3: gpu: expected the key arch, found none. Fix: add it"},
      {kSmall + gpu + "  arch: ampere\n",
       "h.yaml:10:9: gpu.arch: expected sm_ and two or three digits, such as sm_86, found \"ampere\""},
      {kSmall + gpu + "  arch: sm_86\n  vram_free: 25GiB\n",
       "h.yaml:11:14: gpu.vram_free: expected no more than the total of 24.0 GiB, found \"25GiB\""},
      {kSmall + gpu + "  arch: sm_86\n  efficiency: 80\n",
       "h.yaml:11:15: gpu.efficiency: expected a number from 0.001 to 1, found \"80\""},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(refusal(text), message) << text;
}

}  // namespace
}  // namespace tandem
