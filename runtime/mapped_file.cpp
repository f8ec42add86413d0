#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "placement/check.h"

namespace tandem {
namespace {

static_assert(sizeof(std::size_t) == 8, "files are larger than a 32-bit address space");

[[noreturn]] void fail_open(const std::string& path, int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      fail_input("{}: expected a file, found none. Fix: check the path", path);
    case EACCES:
    case EPERM:
      fail_input("{}: expected a readable file, found one that this user may not read. Fix: chmod u+r, or another user",
                 path);
    default:
      fail_input("{}: expected a readable file, found the error '{}'. Fix: check the disk and the path", path,
                 std::strerror(error));
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const std::string name = path.string();
  // Non-blocking, so that a named pipe is refused below instead of waited for; it means nothing for a regular file.
  const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) fail_open(name, errno);
  struct stat status {};
  const bool known = ::fstat(file, &status) == 0;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* memory = MAP_FAILED;
  int error = known ? 0 : errno;
  if (known && S_ISREG(status.st_mode) && size > 0) {
    memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    error = memory == MAP_FAILED ? errno : 0;
  }
  ::close(file);
  if (error != 0) fail_open(name, error);
  if (S_ISDIR(status.st_mode)) {
    fail_input("{}: expected a file, found a directory. Fix: name the model file (any shard) inside it", name);
  }
  if (!S_ISREG(status.st_mode)) {
    fail_input("{}: expected a regular file, found a pipe, socket or device. Fix: name a file on disk", name);
  }
  if (size == 0) fail_input("{}: expected a model file, found an empty file. Fix: download the file again", name);
  bytes_ = {static_cast<const std::uint8_t*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::uint8_t*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

bool MappedFile::release(const std::uint8_t* data, std::size_t bytes) const {
  if (data < bytes_.data() || data + bytes > bytes_.data() + bytes_.size()) return false;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  return true;
}

}  // namespace tandem
