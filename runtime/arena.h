// One large piece of memory for expert blobs: page-aligned, with huge pages and locked in RAM when asked and allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

struct ArenaOptions {
  bool huge_pages = true;  // asks for transparent huge pages
  bool lock = false;       // keeps the pages in RAM (mlock)
};

class Arena {
 public:
  Arena() = default;
  // Reserves `bytes`; pages are made when first written. Throws InputError when the address space is refused.
  explicit Arena(std::size_t bytes, const ArenaOptions& options = {});
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  std::uint8_t* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool huge_pages() const { return huge_; }
  // Locks as much as the system allows (to 2 MiB), from the start on. Returns the bytes that are locked now.
  std::size_t lock();
  std::size_t locked() const { return locked_; }
  // Why less than all is locked, with cost and cure; empty when all is, or when locking was not asked for.
  const std::string& warning() const { return warning_; }

 private:
  std::uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0, locked_ = 0;
  bool huge_ = false, want_lock_ = false;
  std::string warning_;
};

}  // namespace tandem
