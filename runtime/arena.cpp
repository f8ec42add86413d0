#include "runtime/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "placement/check.h"
#include "placement/units.h"

namespace tandem {
namespace {

constexpr std::size_t kHuge = std::size_t{2} << 20;

std::size_t round_up(std::size_t n, std::size_t step) {
  return (n + step - 1) / step * step;
}

}  // namespace

Arena::Arena(std::size_t bytes, const ArenaOptions& options) : want_lock_(options.lock) {
  if (bytes == 0) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const bool huge = options.huge_pages && bytes >= 2 * kHuge;
  bytes_ = round_up(bytes, huge ? kHuge : page);
  // Mapped with room to align, since huge pages begin at their own multiples; the ends are given back.
  const std::size_t mapped = bytes_ + (huge ? kHuge : 0);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail_input("memory: expected {} for experts, found: {}. Fix: a smaller model or more swap space",
               format_bytes(static_cast<std::int64_t>(mapped)), std::strerror(errno));
  auto* begin = static_cast<std::uint8_t*>(memory);
  if (huge) {
    const std::size_t head =
        round_up(reinterpret_cast<std::uintptr_t>(begin), kHuge) - reinterpret_cast<std::uintptr_t>(begin);
    if (head > 0) munmap(begin, head);
    if (const std::size_t tail = kHuge - head; tail > 0) munmap(begin + head + bytes_, tail);
    begin += head;
    huge_ = madvise(begin, bytes_, MADV_HUGEPAGE) == 0;
  }
  data_ = begin;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      locked_(std::exchange(other.locked_, 0)),
      huge_(other.huge_),
      want_lock_(other.want_lock_),
      warning_(std::move(other.warning_)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(locked_, other.locked_);
  std::swap(huge_, other.huge_);
  std::swap(want_lock_, other.want_lock_);
  std::swap(warning_, other.warning_);
  return *this;
}

std::size_t Arena::lock() {
  if (!want_lock_ || bytes_ == 0 || locked_ == bytes_) return locked_;
  // Piece by piece, smaller ones towards the limit: half of an arena that stays in RAM is better than none of it.
  std::size_t piece = std::size_t{64} << 20;
  int error = 0;
  while (locked_ < bytes_ && piece >= kHuge) {
    const std::size_t n = std::min(piece, bytes_ - locked_);
    if (mlock(data_ + locked_, n) == 0) {
      locked_ += n;
    } else {
      error = errno;
      piece /= 2;
    }
  }
  if (locked_ == bytes_) return locked_;
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const auto show = [](std::size_t n) { return format_bytes(static_cast<std::int64_t>(n)); };
  warning_ = fmt::format(
      "{} of {} of the experts in RAM are locked ({}; limit {}), so under memory pressure the system may move them out "
      "and a token may wait for the disk. Fix: raise the limit (ulimit -l unlimited, or memlock in "
      "/etc/security/limits.conf), or crew: lock_memory: false to leave it at that",
      show(locked_), show(bytes_), std::strerror(error),
      limit.rlim_cur == RLIM_INFINITY ? "none" : show(limit.rlim_cur));
  return locked_;
}

}  // namespace tandem
