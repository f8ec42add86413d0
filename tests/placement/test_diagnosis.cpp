// Each finding appears exactly when its fact holds: a good machine has none, one changed fact gives that one alone, and
// the values just on the good side of each bound give none.
#include "placement/diagnosis.h"

#include <gtest/gtest.h>

#include <functional>

#include "placement/units.h"

namespace tandem {
namespace {

struct Machine {
  Hardware hardware;
  SystemFacts system;
  DiskFacts disk;
  std::string gpu_missing;
};

Machine good() {
  Machine m;
  m.hardware.cpu = {"model", 8, 0, 16, 1, 1, "avx2", 0.85, 0.15, {}, 15};
  m.hardware.ram.read_gbps = {{1, 13}, {4, 40}, {8, 45}};
  m.hardware.disk = {400, 3};
  m.hardware.gpu = Hardware::Gpu{};
  m.system.online_processors = 16;
  m.system.load = 1;
  m.system.ram_installed = 64 * kGiB;
  m.system.ram_available = 58 * kGiB;
  m.system.swap_total = 8 * kGiB;
  m.system.huge_pages = "madvise";
  m.system.governor = "performance";
  m.system.scaling_driver = "acpi-cpufreq";
  m.disk = {"/models", "ext4", ""};
  return m;
}

std::vector<Finding> findings(const std::function<void(Machine&)>& change) {
  Machine m = good();
  change(m);
  return diagnose(m.hardware, m.system, m.disk, m.gpu_missing);
}

std::string ids(const std::function<void(Machine&)>& change) {
  std::string all;
  for (const Finding& finding : findings(change)) {
    all += (all.empty() ? "" : " ") + finding.id + (finding.severity == Severity::kNote ? "(note)" : "");
    EXPECT_FALSE(finding.what.empty() || finding.cost.empty() || finding.cure.empty()) << finding.id;
  }
  return all;
}

TEST(Diagnosis, AGoodMachineHasNone) {
  EXPECT_EQ(ids([](Machine&) {}), "");
}

TEST(Diagnosis, Memory) {
  EXPECT_EQ(ids([](Machine& m) { m.system.lockable = 58 * kGiB - 1; }), "memlock");
  EXPECT_EQ(ids([](Machine& m) { m.system.lockable = 0; }), "memlock");
  EXPECT_EQ(ids([](Machine& m) { m.system.lockable = 58 * kGiB; }), "");

  EXPECT_EQ(ids([](Machine& m) {
              m.system.ram_limit = 60 * kGiB;
              m.system.ram_available = 50 * kGiB;
            }),
            "ram_limit");
  EXPECT_EQ(ids([](Machine& m) { m.system.ram_limit = 64 * kGiB; }), "");

  EXPECT_EQ(ids([](Machine& m) { m.system.ram_available = 38 * kGiB; }), "ram_in_use");
  EXPECT_EQ(ids([](Machine& m) { m.system.ram_available = 39 * kGiB; }), "");
  // Under a limit, the limit counts: 30 of 32 GiB are not little.
  EXPECT_EQ(ids([](Machine& m) {
              m.system.ram_limit = 32 * kGiB;
              m.system.ram_available = 30 * kGiB;
            }),
            "ram_limit");

  EXPECT_EQ(ids([](Machine& m) { m.system.swap_used = kGiB + 1; }), "swap");
  EXPECT_EQ(ids([](Machine& m) { m.system.swap_used = kGiB; }), "");

  EXPECT_EQ(ids([](Machine& m) { m.system.huge_pages = "never"; }), "huge_pages(note)");
  EXPECT_EQ(ids([](Machine& m) { m.system.huge_pages = "always"; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.system.huge_pages = ""; }), "");
}

TEST(Diagnosis, SpeedOfMemory) {
  const auto reads = [](std::map<int, double> points) {
    return [points](Machine& m) { m.hardware.ram.read_gbps = points; };
  };
  EXPECT_EQ(ids(reads({{1, 12}, {8, 25.9}})), "memory_channel");
  EXPECT_EQ(ids(reads({{1, 12}, {8, 26}})), "");
  EXPECT_EQ(ids(reads({{1, 12}, {4, 30}, {8, 25}})), "fewer_workers(note)");
  EXPECT_EQ(ids(reads({})), "");
  // Few cores cannot draw more, whatever the channels.
  EXPECT_EQ(ids([](Machine& m) {
              m.hardware.cpu.performance_cores = 3;
              m.hardware.ram.read_gbps = {{3, 20}};
            }),
            "");

  EXPECT_EQ(ids(reads({{4, 50}, {8, 44.9}})), "fewer_workers(note)");
  EXPECT_EQ(ids(reads({{4, 50}, {8, 45}})), "");
  EXPECT_EQ(ids(reads({{4, 44}, {8, 50}})), "");
  // All performance cores are compared, not what efficiency cores add.
  EXPECT_EQ(ids(reads({{8, 50}, {16, 30}})), "");
  EXPECT_EQ(ids(reads({{8, 40}, {16, 60}})), "");
}

TEST(Diagnosis, Processor) {
  EXPECT_EQ(ids([](Machine& m) { m.system.cpu_quota = 7.9; }), "cpu_quota");
  EXPECT_EQ(ids([](Machine& m) { m.system.cpu_quota = 8; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.cpu.threads = 15; }), "affinity(note)");
  EXPECT_EQ(ids([](Machine& m) { m.system.online_processors = 0; }), "");

  const auto governor = [](const char* name, const char* driver) {
    return [=](Machine& m) {
      m.system.governor = name;
      m.system.scaling_driver = driver;
    };
  };
  EXPECT_EQ(ids(governor("powersave", "acpi-cpufreq")), "governor");
  EXPECT_EQ(ids(governor("powersave", "intel_pstate")), "governor(note)");
  EXPECT_EQ(ids(governor("powersave", "amd-pstate-epp")), "governor(note)");
  EXPECT_EQ(ids(governor("schedutil", "acpi-cpufreq")), "governor(note)");
  EXPECT_EQ(ids(governor("performance", "intel_pstate")), "");
  EXPECT_EQ(ids(governor("", "")), "");

  EXPECT_EQ(ids([](Machine& m) { m.system.load = 8.1; }), "busy");
  EXPECT_EQ(ids([](Machine& m) { m.system.load = 8; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.cpu.efficiency_cores = 4; }), "efficiency_cores(note)");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.cpu.numa_nodes = 2; }), "numa(note)");
}

TEST(Diagnosis, Disk) {
  EXPECT_EQ(ids([](Machine& m) { m.disk.problem = "full"; }), "disk_unmeasured");
  for (const char* name : {"tmpfs", "ramfs"})
    EXPECT_EQ(ids([=](Machine& m) { m.disk.filesystem = name; }), "disk_is_ram") << name;
  for (const char* name : {"nfs", "cifs", "smb2", "9p", "fuse"})
    EXPECT_EQ(ids([=](Machine& m) { m.disk.filesystem = name; }), "disk_is_remote") << name;
  for (const char* name : {"xfs", "btrfs", "overlay", ""})
    EXPECT_EQ(ids([=](Machine& m) { m.disk.filesystem = name; }), "") << name;
  EXPECT_EQ(ids([](Machine& m) { m.hardware.disk.random_read_mbps = 131; }), "disk_random");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.disk.random_read_mbps = 131.1; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.disk.large_read_gbps = 0.99; }), "disk_large");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.disk.large_read_gbps = 1; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.hardware.disk = {}; }), "");  // not measured
}

TEST(Diagnosis, SystemAndCard) {
  EXPECT_EQ(ids([](Machine& m) { m.system.wsl = true; }), "wsl");
  EXPECT_EQ(ids([](Machine& m) {
              m.gpu_missing = "this build has none";
              m.system.nvidia_driver = true;
            }),
            "gpu");
  EXPECT_EQ(ids([](Machine& m) { m.gpu_missing = "this build has none"; }), "");
  EXPECT_EQ(ids([](Machine& m) { m.system.nvidia_driver = true; }), "");
}

TEST(Diagnosis, ProblemsComeFirst) {
  EXPECT_EQ(ids([](Machine& m) {
              m.system.huge_pages = "never";
              m.hardware.cpu.numa_nodes = 2;
              m.system.wsl = true;
              m.system.lockable = 8 * kMiB;
            }),
            "memlock wsl huge_pages(note) numa(note)");
}

TEST(Diagnosis, CostsAreComputed) {
  const auto cost = [](const std::function<void(Machine&)>& change) { return findings(change).at(0).cost; };
  EXPECT_EQ(cost([](Machine& m) { m.hardware.disk.large_read_gbps = 0.5; }), "a model of 40 GB takes 80 s to load");
  // 6.5536 MB a second are 100 tokens of 16 pages of 4 KiB.
  EXPECT_EQ(cost([](Machine& m) { m.hardware.disk.random_read_mbps = 6.5536; }),
            "a prompt is read at 100 tokens a second at most while the n-gram table is on this disk (16 rows a token)");
  EXPECT_EQ(cost([](Machine& m) { m.system.ram_limit = 40 * kGiB; }),
            "24.0 GiB less for experts; a program that takes more is killed");
  EXPECT_EQ(cost([](Machine& m) { m.system.ram_available = 32 * kGiB; }),
            "32.0 GiB that other programs hold cannot hold experts");
  EXPECT_EQ(findings([](Machine& m) { m.system.cpu_quota = 3.5; }).at(0).cure,
            "raise the quota (docker: --cpus), or set crew.workers to 3");
  EXPECT_EQ(findings([](Machine& m) { m.system.cpu_quota = 0.5; }).at(0).cure,
            "raise the quota (docker: --cpus), or set crew.workers to 1");
}

}  // namespace
}  // namespace tandem
