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
  // Takes the whole pages of this range out of the process's memory; they stay in the page cache, and a later read
  // brings them back. False when the range is not of this file.
  bool release(const std::uint8_t* data, std::size_t bytes) const;

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace tandem
