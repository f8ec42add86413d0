// Reading and writing whole files: nothing half-written, every failure with its cause.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

// The bytes of a regular file. Throws InputError, naming `what` it should have been ("census", "policy").
std::string read_file(const std::filesystem::path& path, std::string_view what);

// A file that appears under its name only when it is whole: bytes go to PATH.tmp; finish() syncs and renames it.
// Destroyed without finish(), the temporary file is removed. All failures are InputError.
class AtomicFile {
 public:
  // where: what messages start with; empty: the path. private_file: readable by the owner only.
  explicit AtomicFile(std::filesystem::path path, std::string where = {}, bool private_file = false);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  void write(std::string_view bytes);
  void finish();

 private:
  [[noreturn]] void fail(const char* what);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_, temporary_;
  std::string where_;
  std::unique_ptr<std::FILE, Close> file_;
};

void write_file(const std::filesystem::path& path, std::string_view bytes, bool private_file = false);

}  // namespace tandem
