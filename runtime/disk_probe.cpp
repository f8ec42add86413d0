#include "runtime/disk_probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "placement/check.h"
#include "placement/units.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kPage = 4096, kLarge = 4 << 20, kLeast = 32 << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Memory that direct reads and writes take.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::int64_t bytes)
      : data_(std::aligned_alloc(kPage, static_cast<std::size_t>(bytes)), &std::free) {
    CHECK(data_ != nullptr);
  }
  void* data() const { return data_.get(); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

std::string filesystem_name(const struct statfs& info) {
  const std::pair<unsigned long, const char*> known[] = {
      {0xEF53, "ext4"},      {0x58465342, "xfs"},   {0x9123683E, "btrfs"},  {0xF2F52010, "f2fs"}, {0x2FC12FC1, "zfs"},
      {0x01021994, "tmpfs"}, {0x858458F6, "ramfs"}, {0x6969, "nfs"},        {0xFF534D42, "cifs"}, {0xFE534D42, "smb2"},
      {0x01021997, "9p"},    {0x65735546, "fuse"},  {0x794C7630, "overlay"}};
  for (const auto& [number, name] : known)
    if ((static_cast<unsigned long>(info.f_type) & 0xFFFFFFFFUL) == number) return name;
  return {};
}

// A file without a name: gone when it is closed, however the program ends.
class ProbeFile {
 public:
  explicit ProbeFile(const std::filesystem::path& folder) {
    std::string name = (folder / ".tandem-doctor-XXXXXX").string();
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0)
      fail_input("--disk-dir {}: expected a folder that can be written to, found: {}", folder.string(),
                 std::strerror(errno));
    ::unlink(name.c_str());
  }
  ~ProbeFile() { ::close(fd_); }
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  int fd() const { return fd_; }
  bool make_direct() const {
    const int flags = ::fcntl(fd_, F_GETFL);
    return flags >= 0 && ::fcntl(fd_, F_SETFL, flags | O_DIRECT) == 0;
  }

 private:
  int fd_ = -1;
};

// Bytes written; 0 with errno set when writing fails.
std::int64_t fill(int fd, const DiskPlan& plan) {
  const AlignedBytes block(kLarge);
  std::mt19937_64 random(1);  // incompressible: some disks and file systems compress
  std::vector<std::uint64_t> words(kLarge / 8);
  for (std::uint64_t& word : words) word = random();
  std::memcpy(block.data(), words.data(), kLarge);
  const Clock::time_point start = Clock::now();
  std::int64_t done = 0;
  while (done < plan.file_bytes && (done < kLeast || seconds_since(start) < plan.write_seconds)) {
    std::memcpy(block.data(), &done, sizeof done);  // no two blocks alike
    if (::pwrite(fd, block.data(), kLarge, done) != kLarge) return 0;
    done += kLarge;
  }
  return ::fdatasync(fd) == 0 ? done : 0;
}

// Bytes a second of `readers` threads that read pieces of `piece` bytes; 0 with errno set when reading fails.
template <typename NextOffset>
double read_rate(int fd, std::int64_t piece, int readers, double seconds, const NextOffset& next) {
  std::atomic<std::int64_t> bytes{0};
  std::atomic<int> error{0};
  std::vector<std::thread> threads;
  const Clock::time_point start = Clock::now();
  for (int r = 0; r < readers; ++r) {
    threads.emplace_back([&, r] {
      const AlignedBytes buffer(piece);
      std::mt19937_64 random(static_cast<std::uint64_t>(r) + 7);
      while (seconds_since(start) < seconds && error == 0) {
        const ssize_t n = ::pread(fd, buffer.data(), static_cast<std::size_t>(piece), next(random));
        if (n != piece) error = n < 0 ? errno : EIO;
        bytes += piece;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  errno = error;
  return error == 0 ? static_cast<double>(bytes) / seconds_since(start) : 0;
}

}  // namespace

DiskResult probe_disk(const std::filesystem::path& folder, const DiskPlan& plan,
                      const std::function<void(std::size_t, std::size_t)>& step) {
  constexpr std::size_t kSteps = 3;
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    fail_input("--disk-dir {}: expected a folder, found none", folder.string());
  DiskResult result;
  result.facts.folder = folder.string();
  const auto failed = [&result](std::string problem) {
    result.facts.problem = std::move(problem);
    return result;
  };
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return failed(std::strerror(errno));
  result.facts.filesystem = filesystem_name(info);
  const std::int64_t room = static_cast<std::int64_t>(info.f_bavail) * info.f_bsize;
  if (room / 2 < plan.file_bytes)
    return failed(fmt::format("{} are free, twice {} are wanted", format_bytes(room), format_bytes(plan.file_bytes)));

  const ProbeFile file(folder);
  if (!file.make_direct()) return failed("its file system takes no direct reads");
  const std::int64_t bytes = fill(file.fd(), plan);
  if (bytes == 0) return failed(fmt::format("writing: {}", std::strerror(errno)));
  step(1, kSteps);

  const auto pages = static_cast<std::uint64_t>(bytes / kPage), blocks = static_cast<std::uint64_t>(bytes / kLarge);
  const double random = read_rate(file.fd(), kPage, plan.readers, plan.random_seconds,
                                  [&](std::mt19937_64& draw) { return static_cast<off_t>(draw() % pages) * kPage; });
  if (random == 0) return failed(fmt::format("reading: {}", std::strerror(errno)));
  step(2, kSteps);
  std::atomic<std::uint64_t> turn{0};
  constexpr int kLargeReaders = 4;
  const double large = read_rate(file.fd(), kLarge, kLargeReaders, plan.large_seconds,
                                 [&](std::mt19937_64&) { return static_cast<off_t>(turn++ % blocks) * kLarge; });
  if (large == 0) return failed(fmt::format("reading: {}", std::strerror(errno)));
  step(3, kSteps);
  result.rates = {random / 1e6, large / 1e9};
  return result;
}

}  // namespace tandem
