// How fast a folder's disk reads: 4 KiB at random with many in flight, and large pieces one after the other, past the
// page cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "placement/diagnosis.h"
#include "placement/hardware.h"

namespace tandem {

struct DiskPlan {
  std::int64_t file_bytes = 512 << 20;  // of the file that is written for it, and is gone afterwards in any case
  double write_seconds = 3;             // after that the file is long enough, whatever its length
  double random_seconds = 1.5, large_seconds = 1.0;
  int readers = 32;  // threads, one read each in flight
};

struct DiskResult {
  Hardware::Disk rates;
  DiskFacts facts;  // with the reason when nothing could be measured
};

// Throws InputError when `folder` is none that can be written to. `step` is called with (done, total).
DiskResult probe_disk(const std::filesystem::path& folder, const DiskPlan& plan,
                      const std::function<void(std::size_t, std::size_t)>& step);

}  // namespace tandem
