// What `tandem doctor` reads from /proc and /sys, from folders made for it; its report; its disk probe on a real
// folder.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "placement/units.h"
#include "runtime/cmd_doctor.h"
#include "runtime/disk_probe.h"
#include "runtime/system_facts.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

using testing::TemporaryFolder;

const char* const kMeminfo =
    "MemTotal:       67108864 kB\nMemFree:         1000000 kB\nMemAvailable:   58720256 kB\nSwapCached: 0 kB\n"
    "SwapTotal:       8388608 kB\nSwapFree:        6291456 kB\n";

TEST(SystemFacts, AnEmptyFolderSaysNothing) {
  const TemporaryFolder root;
  const SystemFacts f = read_system_facts(0, root.path());
  EXPECT_EQ(f.cpu_model, "");
  EXPECT_EQ(f.online_processors, 0);
  EXPECT_EQ(f.ram_installed, 0);
  EXPECT_FALSE(f.ram_limit || f.cpu_quota || f.lockable);
  EXPECT_EQ(f.huge_pages + f.governor + f.scaling_driver, "");
  EXPECT_FALSE(f.wsl || f.nvidia_driver);
}

TEST(SystemFacts, AnOrdinaryMachine) {
  const TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/loadavg", "2.75 1.63 1.43 6/116 12025\n");
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD Ryzen 9: X\n\nprocessor\t: 1\nmodel name\t: other\n");
  root.write("proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max locked memory         8388608              unlimited            bytes     \n"
             "Max file locks            7                    7                    locks     \n");
  root.write("proc/self/status", "Name:\ttandem\nCapEff:\t0000000000000000\n");
  root.write("proc/sys/kernel/osrelease", "6.1.0-26-amd64\n");
  root.write("sys/devices/system/cpu/online", "0-7,16,18-19\n");
  root.write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "schedutil\n");
  root.write("sys/devices/system/cpu/cpu3/cpufreq/scaling_driver", "acpi-cpufreq\n");
  root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  const SystemFacts f = read_system_facts(3, root.path());
  EXPECT_EQ(f.cpu_model, "AMD Ryzen 9: X");
  EXPECT_EQ(f.online_processors, 11);
  EXPECT_EQ(f.load, 2.75);
  EXPECT_EQ(f.ram_installed, 64 * kGiB);
  EXPECT_EQ(f.ram_available, 56 * kGiB);
  EXPECT_EQ(f.ram_usable(), 64 * kGiB);
  EXPECT_EQ(f.swap_total, 8 * kGiB);
  EXPECT_EQ(f.swap_used, 2 * kGiB);
  EXPECT_EQ(f.lockable, 8 * kMiB);
  EXPECT_EQ(f.huge_pages, "madvise");
  EXPECT_EQ(f.governor, "schedutil");
  EXPECT_EQ(f.scaling_driver, "acpi-cpufreq");
  EXPECT_FALSE(f.ram_limit || f.cpu_quota || f.wsl || f.nvidia_driver);
  EXPECT_EQ(read_system_facts(0, root.path()).governor, "");
}

TEST(SystemFacts, LockLimit) {
  const auto lockable = [](const std::string& limit, const std::string& capabilities) {
    const TemporaryFolder root;
    root.write("proc/self/limits", "Max locked memory         " + limit + "   0   bytes\n");
    root.write("proc/self/status", "CapInh:\t0000000000004000\nCapEff:\t" + capabilities + "\n");
    return read_system_facts(0, root.path()).lockable;
  };
  EXPECT_EQ(lockable("65536", "0"), 65536);
  EXPECT_EQ(lockable("0", "0"), 0);
  EXPECT_EQ(lockable("unlimited", "0"), std::nullopt);
  EXPECT_EQ(lockable("65536", "0000000000004000"), std::nullopt);  // CAP_IPC_LOCK, bit 14
  EXPECT_EQ(lockable("65536", "000001fffeffffff"), std::nullopt);
  EXPECT_EQ(lockable("65536", "ffffffffffffbfff"), 65536);
}

TEST(SystemFacts, ControlGroupsOfVersion2) {
  const TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/user.slice/app.scope\n");
  const std::string top = "sys/fs/cgroup/user.slice/";
  root.write(top + "memory.max", "34359738368\n");  // 32 GiB
  root.write(top + "memory.current", "12884901888\n");
  root.write(top + "memory.stat", "anon 5\ninactive_file 2147483648\nactive_file 7\n");
  root.write(top + "cpu.max", "max 100000\n");
  root.write(top + "app.scope/memory.max", "max\n");
  root.write(top + "app.scope/cpu.max", "250000 100000\n");
  const SystemFacts f = read_system_facts(0, root.path());
  EXPECT_EQ(f.ram_limit, 32 * kGiB);
  EXPECT_EQ(f.ram_usable(), 32 * kGiB);
  EXPECT_EQ(f.ram_available, (32 - 12 + 2) * kGiB);
  EXPECT_EQ(f.cpu_quota, 2.5);

  // The smallest limit on the way up counts, and the group at the root too.
  root.write(top + "app.scope/memory.max", "17179869184\n");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(read_system_facts(0, root.path()).ram_limit, 16 * kGiB);
  EXPECT_EQ(read_system_facts(0, root.path()).ram_available, 16 * kGiB);
  EXPECT_EQ(read_system_facts(0, root.path()).cpu_quota, 1.5);
}

TEST(SystemFacts, ControlGroupInsideAContainer) {
  // The path is the host's and not there; the container's own files are at the root.
  const TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/docker/abc\n");
  root.write("sys/fs/cgroup/memory.max", "8589934592\n");
  root.write("sys/fs/cgroup/memory.current", "9589934592\n");
  const SystemFacts f = read_system_facts(0, root.path());
  EXPECT_EQ(f.ram_limit, 8 * kGiB);
  EXPECT_EQ(f.ram_available, 0);  // never below
}

TEST(SystemFacts, ControlGroupsOfVersion1) {
  const TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "5:cpuset:/z\n4:memory:/jobs/a\n2:cpu,cpuacct:/jobs\n0::/\n");
  root.write("sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "21474836480\n");
  root.write("sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "5368709120\n");
  root.write("sys/fs/cgroup/memory/jobs/a/memory.stat", "inactive_file 9\ntotal_inactive_file 1073741824\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // the kernel's "no limit"
  root.write("sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us", "600000\n");
  root.write("sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const SystemFacts f = read_system_facts(0, root.path());
  EXPECT_EQ(f.ram_limit, 20 * kGiB);
  EXPECT_EQ(f.ram_available, 16 * kGiB);
  EXPECT_EQ(f.cpu_quota, 6.0);
}

TEST(SystemFacts, LimitsAboveTheMachineAreNone) {
  const TemporaryFolder root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.max", "68719476736\n");  // 64 GiB, all there is
  EXPECT_EQ(read_system_facts(0, root.path()).ram_limit, std::nullopt);
}

TEST(SystemFacts, WindowsAndDriver) {
  const TemporaryFolder root;
  root.write("proc/sys/kernel/osrelease", "5.15.153.1-Microsoft-standard-WSL2\n");
  root.write("proc/driver/nvidia/version", "NVRM\n");
  EXPECT_TRUE(read_system_facts(0, root.path()).wsl);
  EXPECT_TRUE(read_system_facts(0, root.path()).nvidia_driver);
}

TEST(SystemFacts, ThisMachine) {
  const SystemFacts f = read_system_facts(0);
  EXPECT_GT(f.ram_installed, 0);
  EXPECT_GT(f.ram_available, 0);
  EXPECT_LE(f.ram_available, f.ram_usable());
  EXPECT_GE(f.online_processors, 1);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
  if (f.lockable) {
    EXPECT_EQ(*f.lockable, static_cast<std::int64_t>(limit.rlim_cur));
  }
}

// ---- disk -----------------------------------------------------------------------------------------------------------

TEST(DiskProbe, LeavesNothingBehind) {
  const TemporaryFolder folder;
  DiskPlan plan;
  plan.file_bytes = 32 << 20;
  plan.random_seconds = plan.large_seconds = 0.05;
  std::vector<std::size_t> steps;
  const DiskResult result = probe_disk(folder.path(), plan, [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, 3U);
    steps.push_back(done);
  });
  EXPECT_EQ(result.facts.folder, folder.path().string());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  if (!result.facts.problem.empty()) GTEST_SKIP() << result.facts.problem;
  EXPECT_EQ(steps, (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_GT(result.rates.random_read_mbps, 0);
  EXPECT_GT(result.rates.large_read_gbps, 0);
}

TEST(DiskProbe, SaysWhyItDidNotMeasure) {
  const TemporaryFolder folder;
  DiskPlan plan;
  plan.file_bytes = std::int64_t{1} << 60;
  const DiskResult result = probe_disk(folder.path(), plan, [](std::size_t, std::size_t) { FAIL(); });
  EXPECT_TRUE(result.facts.problem.ends_with("are free, twice 1048576 TiB are wanted")) << result.facts.problem;
  EXPECT_EQ(result.rates.random_read_mbps, 0);
}

TEST(DiskProbe, RefusesWhatIsNoFolder) {
  const TemporaryFolder folder;
  const auto file = folder.write("file", "x");
  for (const std::filesystem::path& path : {file, folder.path() / "none"}) {
    try {
      probe_disk(path, {}, [](std::size_t, std::size_t) {});
      FAIL() << path;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()), "--disk-dir " + path.string() + ": expected a folder, found none");
    }
  }
}

// ---- report ---------------------------------------------------------------------------------------------------------

DoctorReport example() {
  DoctorReport r;
  r.hardware.name = "box";
  r.hardware.source = "s";
  r.hardware.cpu = {"Some CPU", 8, 4, 20, 2, 1, "avx2", 0.85, 0.15, {}, 15};
  r.hardware.ram.total = 64 * kGiB;
  r.hardware.ram.available = 60 * kGiB;
  r.hardware.ram.read_gbps = {{1, 13.52}, {8, 45}};
  r.hardware.disk = {412, 3.25};
  r.system.lockable = 8 * kMiB;
  r.system.huge_pages = "madvise";
  r.system.swap_total = 2 * kGiB;
  r.system.governor = "performance";
  r.system.scaling_driver = "d";
  r.disk = {"/m", "ext4", ""};
  r.gpu_missing = "none here";
  r.findings = {{"one", Severity::kProblem, "first thing", "money", "work"},
                {"two", Severity::kNote, "second thing", "time", "rest"}};
  r.profile = "/p.yaml";
  return r;
}

TEST(DoctorReport, Text) {
  EXPECT_EQ(doctor_text(example()),
            "box\n"
            "  processor   Some CPU\n"
            "  cores       8 performance and 4 efficiency cores, 20 threads, 2 L3 groups, 1 NUMA node, avx2\n"
            "  RAM         64.0 GiB, 60.0 GiB available; 8.00 MiB may be locked; huge pages madvise\n"
            "  RAM reads   1 13.5 | 8 45.0 GB/s by number of workers\n"
            "  swap        0 B of 2.00 GiB in use\n"
            "  frequency   governor performance, driver d\n"
            "  disk        /m (ext4): 412 MB/s in random reads of 4 KiB, 3.25 GB/s in large reads\n"
            "  GPU         no GPU: none here\n"
            "\n"
            "1 problem, 1 note:\n"
            "  ! first thing\n"
            "      cost: money\n"
            "      cure: work\n"
            "  - second thing\n"
            "      cost: time\n"
            "      cure: rest\n"
            "\n"
            "Written to /p.yaml\n");
}

// One card is described already; of several each has a line, and the one that was measured is the first.
TEST(DoctorReport, SeveralCards) {
  DoctorReport r = example();
  r.cards = {"cuda:0: A, 1 GiB free of 24 GiB"};
  EXPECT_EQ(doctor_text(r).find("cuda:0"), std::string::npos);
  r.cards.push_back("cuda:1: B, 3 GiB free of 6 GiB; cannot be used: too old");
  EXPECT_NE(doctor_text(r).find("  GPU         no GPU: none here\n"
                                "              cuda:0: A, 1 GiB free of 24 GiB\n"
                                "              cuda:1: B, 3 GiB free of 6 GiB; cannot be used: too old\n"),
            std::string::npos);
}

TEST(DoctorReport, HeadOfTheFindings) {
  const auto head = [](int problems, int notes) {
    DoctorReport r = example();
    r.findings.clear();
    for (int i = 0; i < problems; ++i) r.findings.push_back({"p", Severity::kProblem, "w", "c", "c"});
    for (int i = 0; i < notes; ++i) r.findings.push_back({"n", Severity::kNote, "w", "c", "c"});
    const std::string text = doctor_text(r);
    const std::size_t start = text.find("\n\n") + 2;
    return text.substr(start, text.find('\n', start) - start);
  };
  EXPECT_EQ(head(0, 0), "Nothing is wrong.");
  EXPECT_EQ(head(0, 2), "Nothing is wrong, 2 notes:");
  EXPECT_EQ(head(2, 0), "2 problems:");
  EXPECT_EQ(head(1, 1), "1 problem, 1 note:");
}

TEST(DoctorReport, LongTextIsWrapped) {
  DoctorReport r = example();
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word" + std::to_string(i) + (i == 59 ? "" : " ");
  r.findings[0].cure = words;
  std::istringstream lines(doctor_text(r));
  std::string joined;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    joined += line.substr(std::min(line.size(), line.find_first_not_of(' '))) + " ";
  }
  EXPECT_NE(joined.find("cure: " + words), std::string::npos) << joined;
  r.disk.folder = "/" + std::string(120, 'm');  // a word longer than a line stays beside its head
  EXPECT_NE(doctor_text(r).find("\n  disk        " + r.disk.folder + "\n              (ext4): "), std::string::npos);
}

TEST(DoctorReport, Json) {
  const nlohmann::json json = nlohmann::json::parse(doctor_json(example()));
  EXPECT_EQ(json["cpu"]["performance_cores"], 8);
  EXPECT_EQ(json["ram"]["lockable"], 8 * kMiB);
  EXPECT_EQ(json["ram"]["limit"], nullptr);
  EXPECT_EQ(json["ram"]["read_gbps"]["8"], 45.0);
  EXPECT_EQ(json["disk"]["random_read_mbps"], 412.0);
  EXPECT_EQ(json["gpu"], nullptr);
  EXPECT_EQ(json["gpu_missing"], "none here");
  EXPECT_EQ(json["findings"].size(), 2U);
  EXPECT_EQ(json["findings"][0]["severity"], "problem");
  EXPECT_EQ(json["findings"][1]["severity"], "note");
  EXPECT_EQ(json["profile"], "/p.yaml");
  DoctorReport with_gpu = example();
  with_gpu.hardware.gpu = Hardware::Gpu{};
  with_gpu.hardware.gpu->arch = "sm_86";
  EXPECT_EQ(nlohmann::json::parse(doctor_json(with_gpu))["gpu"]["arch"], "sm_86");
  EXPECT_EQ(nlohmann::json::parse(doctor_json(with_gpu))["gpu"].at("fetch_us"), with_gpu.hardware.gpu->fetch_us);
  EXPECT_EQ(doctor_text(with_gpu).find("no GPU"), std::string::npos);
}

}  // namespace
}  // namespace tandem
