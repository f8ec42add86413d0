// A file mapped read-only into memory, whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace tandem {

class MappedFile {
 public:
  // Throws InputError when `path` is missing, not a regular file, empty, not readable or cannot be mapped. The mapping
  // is private: pages are read on demand and shared with the page cache.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::uint8_t> bytes() const { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace tandem
