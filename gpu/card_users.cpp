#include "gpu/card_users.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <vector>

#include "placement/units.h"

namespace tandem {

namespace {

// The part of nvml.h that is used: names and layouts of its versioned interface.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;  // all bits set: not told
  unsigned gpu_instance, compute_instance;
};
using Init = int (*)();
using ByBusId = int (*)(const char*, void**);
using Processes = int (*)(void*, unsigned*, ProcessInfo*);

struct Library {
  void* handle = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }
  template <typename F>
  F find(const char* name) const {
    return handle == nullptr ? nullptr : reinterpret_cast<F>(dlsym(handle, name));
  }
};

std::string process_name(unsigned pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  return std::getline(file, name) && !name.empty() ? name : "a program";
}

}  // namespace

std::string card_users(int device) {
  std::array<char, 32> bus{};
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), device) != cudaSuccess) return {};
  const Library library;
  const auto init = library.find<Init>("nvmlInit_v2");
  const auto done = library.find<Init>("nvmlShutdown");
  const auto by_bus = library.find<ByBusId>("nvmlDeviceGetHandleByPciBusId_v2");
  if (init == nullptr || done == nullptr || by_bus == nullptr || init() != 0) return {};
  std::vector<ProcessInfo> users;
  void* card = nullptr;
  if (by_bus(bus.data(), &card) == 0)
    for (const char* kind : {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"})
      if (const auto list = library.find<Processes>(kind); list != nullptr) {
        std::array<ProcessInfo, 64> some{};
        auto count = static_cast<unsigned>(some.size());
        if (list(card, &count, some.data()) != 0) continue;
        for (unsigned i = 0; i < count; ++i)
          if (some[i].pid != static_cast<unsigned>(getpid())) users.push_back(some[i]);
      }
  static_cast<void>(done());
  const auto known = [](const ProcessInfo& p) { return p.used_bytes == ~0ULL ? 0 : p.used_bytes; };
  std::sort(users.begin(), users.end(),
            [&](const ProcessInfo& a, const ProcessInfo& b) { return known(a) > known(b); });
  std::string text;
  for (const ProcessInfo& p : users) {
    text += fmt::format("{}{} (pid {})", text.empty() ? "" : ", ", process_name(p.pid), p.pid);
    if (known(p) > 0) text += " " + format_bytes(static_cast<std::int64_t>(known(p)));
  }
  return text;
}

}  // namespace tandem
