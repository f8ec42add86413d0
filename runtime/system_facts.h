// What /proc and /sys say about this machine and this process.
#pragma once

#include <filesystem>

#include "placement/diagnosis.h"

namespace tandem {

// Reads files under `root` ("/" on a real machine): proc/{meminfo,loadavg,cpuinfo,self/limits,self/status,self/cgroup,
// sys/kernel/osrelease}, sys/devices/system/cpu, sys/kernel/mm, sys/fs/cgroup (versions 1 and 2; the smallest limit
// from the process's group up to the root). What a file does not say is left at its default. `processor`: an allowed
// one.
SystemFacts read_system_facts(int processor, const std::filesystem::path& root = "/");

}  // namespace tandem
