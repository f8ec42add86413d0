#include "placement/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "placement/check.h"

namespace tandem {

std::string read_file(const std::filesystem::path& path, std::string_view what) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail_input("{}: expected a {} file, found a folder", path.string(), what);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file)
    fail_input("{}: expected a {} file, found none that can be read: {}", path.string(), what, std::strerror(errno));
  std::string bytes;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) bytes.append(buffer, n);
  if (std::ferror(file.get()) != 0)
    fail_input("{}: cannot read the {} file: {}", path.string(), what, std::strerror(errno));
  return bytes;
}

AtomicFile::AtomicFile(std::filesystem::path path, std::string where, bool private_file)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp"), where_(std::move(where)) {
  if (where_.empty()) where_ = path_.string();
  const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, private_file ? 0600 : 0666);
  if (fd < 0) fail("create");
  file_.reset(::fdopen(fd, "wb"));
  CHECK(file_ != nullptr, "{}", std::strerror(errno));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept = default;

AtomicFile::~AtomicFile() {
  if (!file_) return;
  file_.reset();
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* what) {
  const std::string reason = std::strerror(errno);
  if (file_) ::unlink(temporary_.c_str());
  file_.reset();
  fail_input("{}: cannot {} the file: {}", where_, what, reason);
}

void AtomicFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size()) fail("write");
}

void AtomicFile::finish() {
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0) fail("write");
  if (std::fclose(file_.release()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    ::unlink(temporary_.c_str());
    fail_input("{}: cannot write the file: {}", where_, reason);
  }
}

void write_file(const std::filesystem::path& path, std::string_view bytes, bool private_file) {
  AtomicFile file(path, {}, private_file);
  file.write(bytes);
  file.finish();
}

}  // namespace tandem
