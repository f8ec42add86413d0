#include "tests/npy.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "placement/check.h"

namespace tandem::testing {

namespace {

using Bytes = std::span<const char>;

template <typename T>
T read(Bytes bytes, std::size_t at) {
  CHECK(at + sizeof(T) <= bytes.size(), "{} + {} of {}", at, sizeof(T), bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <typename T>
void convert(Bytes data, std::vector<double>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(read<T>(data, i * sizeof(T)));
}

std::string field(const std::string& header, const std::string& key) {
  const std::size_t at = header.find("'" + key + "':");
  CHECK(at != std::string::npos, "{} in {}", key, header);
  return header.substr(at + key.size() + 3);
}

NpyArray parse(Bytes bytes) {
  CHECK(bytes.size() > 10 && std::memcmp(bytes.data(), "\x93NUMPY\x01\x00", 8) == 0, "no .npy version 1 data");
  const std::size_t length = read<std::uint16_t>(bytes, 8);
  const std::string header(bytes.data() + 10, length);
  CHECK(field(header, "fortran_order").find("False") < 3);
  NpyArray array;
  const std::string shape = field(header, "shape");
  std::size_t count = 1;
  for (std::size_t at = shape.find('(') + 1; shape[at] != ')';) {
    const std::size_t digits = shape.find_first_not_of("0123456789", at);
    if (digits > at) {
      array.shape.push_back(std::stoul(shape.substr(at, digits - at)));
      count *= array.shape.back();
    }
    at = shape[digits] == ')' ? digits : digits + 1;
  }
  array.values.resize(count);
  const Bytes data = bytes.subspan(10 + length);
  const std::string type = field(header, "descr").substr(2, 3);
  if (type == "<f8")
    convert<double>(data, array.values);
  else if (type == "<f4")
    convert<float>(data, array.values);
  else if (type == "<i4")
    convert<std::int32_t>(data, array.values);
  else if (type == "<i8")
    convert<std::int64_t>(data, array.values);
  else
    CHECK(false, "element type {}", type);
  return array;
}

std::vector<char> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), "{}", path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

NpyArray load_npy(const std::filesystem::path& path) {
  return parse(read_file(path));
}

std::map<std::string, NpyArray> load_npz(const std::filesystem::path& path) {
  const std::vector<char> file = read_file(path);
  const Bytes bytes(file);
  // The end record of a zip archive without comment, then the central directory.
  const std::size_t end = bytes.size() - 22;
  CHECK(read<std::uint32_t>(bytes, end) == 0x06054B50, "{}: no zip archive", path.string());
  const std::size_t count = read<std::uint16_t>(bytes, end + 10);
  std::size_t at = read<std::uint32_t>(bytes, end + 16);
  std::map<std::string, NpyArray> arrays;
  for (std::size_t i = 0; i < count; ++i) {
    CHECK(read<std::uint32_t>(bytes, at) == 0x02014B50 && read<std::uint16_t>(bytes, at + 10) == 0,
          "compressed member");
    const std::size_t size = read<std::uint32_t>(bytes, at + 24), name_length = read<std::uint16_t>(bytes, at + 28);
    const std::size_t extra = read<std::uint16_t>(bytes, at + 30), local = read<std::uint32_t>(bytes, at + 42);
    const std::string name(bytes.data() + at + 46, name_length);
    const std::size_t data =
        local + 30 + read<std::uint16_t>(bytes, local + 26) + read<std::uint16_t>(bytes, local + 28);
    arrays[name.substr(0, name.size() - 4)] = parse(bytes.subspan(data, size));
    at += 46 + name_length + extra + read<std::uint16_t>(bytes, at + 32);
  }
  return arrays;
}

}  // namespace tandem::testing
