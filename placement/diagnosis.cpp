#include "placement/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "placement/units.h"

namespace tandem {
namespace {

// A token reads 16 rows of the n-gram table, each in a page of its own (4 KiB), and the fastest of the other programs
// read prompts at some 2,000 tokens a second: below this rate the disk is what they would wait for.
constexpr double kRowBytesPerToken = 16 * 4096;
constexpr double kEnoughRandomMbps = 2000 * kRowBytesPerToken / 1e6;
constexpr double kEnoughLargeGbps = 1.0;
constexpr double kModelGb = 40;     // a file of about 3 bits a weight without its n-gram table
constexpr double kOneChannel = 26;  // GB/s; DDR4-3200 has 25.6 a channel
constexpr double kBusy = 0.5;       // runnable threads per processor

class Report {
 public:
  void problem(const char* id, std::string what, std::string cost, std::string cure) {
    problems_.push_back({id, Severity::kProblem, std::move(what), std::move(cost), std::move(cure)});
  }
  void note(const char* id, std::string what, std::string cost, std::string cure) {
    notes_.push_back({id, Severity::kNote, std::move(what), std::move(cost), std::move(cure)});
  }
  std::vector<Finding> take() {
    problems_.insert(problems_.end(), notes_.begin(), notes_.end());
    return std::move(problems_);
  }

 private:
  std::vector<Finding> problems_, notes_;
};

void diagnose_memory(const SystemFacts& system, Report& report) {
  if (system.lockable && *system.lockable < system.ram_available)
    report.problem(
        "memlock",
        fmt::format("only {} of RAM may be locked ({} are available)", format_bytes(*system.lockable),
                    format_bytes(system.ram_available)),
        "experts in RAM may be swapped out while you wait, and a card copies from unlocked memory at a fraction of the "
        "link's rate (7 of 55 GB/s on an H200)",
        "`ulimit -l unlimited` before the start; for good: a line `USER - memlock unlimited` in "
        "/etc/security/limits.conf and a new login (systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1)");
  if (system.ram_limit && *system.ram_limit < system.ram_installed)
    report.problem("ram_limit",
                   fmt::format("the control group allows {} of {} of RAM", format_bytes(*system.ram_limit),
                               format_bytes(system.ram_installed)),
                   fmt::format("{} less for experts; a program that takes more is killed",
                               format_bytes(system.ram_installed - *system.ram_limit)),
                   "raise the limit (docker: --memory, systemd: MemoryMax=, Kubernetes: resources.limits.memory)");
  // The system itself and a desktop take a few GiB; two fifths are more than that on any machine that runs the model.
  if (static_cast<double>(system.ram_available) < 0.6 * static_cast<double>(system.ram_usable()))
    report.problem("ram_in_use",
                   fmt::format("only {} of {} of RAM are available", format_bytes(system.ram_available),
                               format_bytes(system.ram_usable())),
                   fmt::format("{} that other programs hold cannot hold experts",
                               format_bytes(system.ram_usable() - system.ram_available)),
                   "close what you do not need; `ps -eo rss,comm --sort=-rss | head` lists the largest");
  if (system.swap_used > kGiB)
    report.problem("swap", fmt::format("{} sit in swap", format_bytes(system.swap_used)),
                   "memory was short a while ago; pages that come back from swap stop everything for their time",
                   "close programs, then `swapoff -a && swapon -a` once enough RAM is free; lower memory.ram");
  if (system.huge_pages == "never")
    report.note("huge_pages", "transparent huge pages are switched off",
                "more page-table walks; reads were as fast without on the one machine where it was measured (H200)",
                "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`");
}

void diagnose_speed_of_memory(const Hardware& hardware, Report& report) {
  const std::map<int, double>& points = hardware.ram.read_gbps;
  if (points.empty()) return;
  const auto best =
      std::max_element(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (best->second < kOneChannel && hardware.cpu.performance_cores >= 4)
    report.problem(
        "memory_channel",
        fmt::format("RAM is read at {:.1f} GB/s at most, no more than one channel of DDR4 gives", best->second),
        "experts off the card are computed at this rate: a second channel nearly doubles it",
        "put modules of equal size into both channels (the board's manual names the slots), switch XMP or "
        "EXPO on; `sudo dmidecode -t memory` shows what is there");
  const auto all = points.find(hardware.cpu.performance_cores);
  if (all != points.end() && best->first < all->first && all->second < 0.9 * best->second)
    report.note("fewer_workers",
                fmt::format("memory is read fastest by {} workers ({:.1f} GB/s); {} reach {:.1f}", best->first,
                            best->second, all->first, all->second),
                "too many workers are in each other's way",
                fmt::format("crew.workers: auto finds it; `workers: {}` when you set it", best->first));
}

void diagnose_processor(const Hardware& hardware, const SystemFacts& system, Report& report) {
  const Hardware::Cpu& cpu = hardware.cpu;
  const int cores = cpu.performance_cores + cpu.efficiency_cores;
  if (system.cpu_quota && *system.cpu_quota < cores)
    report.problem(
        "cpu_quota",
        fmt::format("the control group grants the time of {:.1f} processors for {} cores", *system.cpu_quota, cores),
        "when it is used up, workers are stopped in the middle of a round and everything waits",
        fmt::format("raise the quota (docker: --cpus), or set crew.workers to {}",
                    std::max(1, static_cast<int>(std::floor(*system.cpu_quota)))));
  if (cpu.threads < system.online_processors)
    report.note("affinity",
                fmt::format("the process may use {} of {} logical processors", cpu.threads, system.online_processors),
                "cores outside it compute nothing", "start without taskset, or allow more (docker: --cpuset-cpus)");
  const bool adapts = system.scaling_driver == "intel_pstate" || system.scaling_driver == "amd-pstate-epp";
  if (system.governor == "powersave" && !adapts)
    report.problem("governor", "the processors run at their lowest frequency (governor powersave)",
                   "experts on the CPU are computed at a fraction of the speed",
                   "`sudo cpupower frequency-set -g performance`");
  else if (!system.governor.empty() && system.governor != "performance")
    report.note("governor", fmt::format("frequency governor {}", system.governor),
                "a core that was idle takes a moment to reach its full frequency",
                "`sudo cpupower frequency-set -g performance` while you use it");
  if (system.load > kBusy * cpu.threads)
    report.problem("busy", fmt::format("other programs keep {:.1f} of {} processors busy", system.load, cpu.threads),
                   "every figure of this page is too low, and so is the speed you get",
                   "close them and run `tandem doctor` again");
  if (cpu.efficiency_cores > 0)
    report.note("efficiency_cores",
                fmt::format("{} performance and {} efficiency cores", cpu.performance_cores, cpu.efficiency_cores),
                "a worker on an efficiency core makes all others wait for it",
                "nothing to do: crew.cores: performance is the default; compare with `all` before you use it");
  if (cpu.numa_nodes > 1)
    report.note("numa", fmt::format("{} NUMA nodes", cpu.numa_nodes), "reads from the other node's memory are slower",
                "if the model fits one node: `numactl --cpunodebind=0 --membind=0 tandem ...`");
}

bool is_any(const std::string& name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void diagnose_disk(const Hardware& hardware, const DiskFacts& disk, Report& report) {
  if (!disk.problem.empty())
    report.problem("disk_unmeasured", fmt::format("the disk of {} was not measured: {}", disk.folder, disk.problem),
                   "loading time and n-gram reads cannot be predicted",
                   "--disk-dir with a folder on the disk that holds the model");
  if (is_any(disk.filesystem, {"tmpfs", "ramfs"}))
    report.problem("disk_is_ram", fmt::format("{} is in RAM ({})", disk.folder, disk.filesystem),
                   "the disk figures are those of RAM", "--disk-dir with a folder on the disk that holds the model");
  if (is_any(disk.filesystem, {"nfs", "cifs", "smb2", "9p", "fuse"}))
    report.problem("disk_is_remote", fmt::format("{} is no local disk ({})", disk.folder, disk.filesystem),
                   "n-gram rows wait for the other side, some milliseconds each",
                   "keep the model on a local SSD (under WSL: inside Linux, not under /mnt)");
  const double random = hardware.disk.random_read_mbps, large = hardware.disk.large_read_gbps;
  if (random > 0 && random < kEnoughRandomMbps)
    report.problem("disk_random", fmt::format("small random reads reach {:.0f} MB/s", random),
                   fmt::format("a prompt is read at {:.0f} tokens a second at most while the n-gram table is on this "
                               "disk (16 rows a token)",
                               random * 1e6 / kRowBytesPerToken),
                   "keep the model on an NVMe SSD, or the table in RAM (ngram.place: ram)");
  if (large > 0 && large < kEnoughLargeGbps)
    report.problem("disk_large", fmt::format("large reads reach {:.2f} GB/s", large),
                   fmt::format("a model of {:.0f} GB takes {:.0f} s to load", kModelGb, kModelGb / large),
                   "keep the model on an NVMe SSD");
}

}  // namespace

std::vector<Finding> diagnose(const Hardware& hardware, const SystemFacts& system, const DiskFacts& disk,
                              const std::string& gpu_missing) {
  Report report;
  diagnose_memory(system, report);
  diagnose_speed_of_memory(hardware, report);
  diagnose_processor(hardware, system, report);
  diagnose_disk(hardware, disk, report);
  if (system.wsl)
    report.problem("wsl", "this is the Windows Subsystem for Linux",
                   "it has half of the RAM unless told otherwise, locks little of it, and files under /mnt are slow",
                   "in %UserProfile%\\.wslconfig: [wsl2] and memory=..GB, then `wsl --shutdown`; keep the model inside "
                   "Linux");
  if (!gpu_missing.empty() && system.nvidia_driver)
    report.problem("gpu", fmt::format("there is an NVIDIA card, but {}", gpu_missing), "everything runs on the CPU",
                   "a build with GPU support");
  return report.take();
}

}  // namespace tandem
