// A checked, read-only directory over the one or many shards of a GGUF file set (format: docs/formats.md).
// Opening maps every shard and verifies every size and offset; nothing that open() accepts can lead to a read outside
// the mapping. All offsets and sizes are 64-bit.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/quant.h"

namespace tandem {

// One tensor of the set. `ne` is in GGUF order: ne[0] is the contiguous dimension; missing dimensions are 1.
struct GgufTensor {
  std::string name;
  DType type = DType::F32;
  int n_dims = 0;
  std::array<std::int64_t, 4> ne{1, 1, 1, 1};
  int shard = 0;             // index into Gguf::shards()
  std::uint64_t offset = 0;  // from the start of the shard's file
  std::uint64_t bytes = 0;
  const std::uint8_t* data = nullptr;  // inside the mapping
};

// A metadata array of scalars (integers widened, floats as double) or of strings (views into the mapping).
struct GgufArray {
  std::uint32_t element_type = 0;  // GGUF value type id, 0..12 without 9
  std::variant<std::vector<std::uint64_t>, std::vector<std::int64_t>, std::vector<double>,
               std::vector<std::string_view>>
      values;
  std::size_t size() const;
};

// Unsigned types are held as uint64, signed as int64, floats as double; a bool inside an array as uint64 0 or 1.
using GgufValue = std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, GgufArray>;

struct GgufKeyValue {
  std::string key;
  std::uint32_t type = 0;  // GGUF value type id
  GgufValue value;
};

// One shard that lies in memory.
struct GgufImage {
  std::string name;  // for messages
  std::span<const std::uint8_t> bytes;
};

struct GgufShard {
  std::filesystem::path path;
  std::uint64_t file_bytes = 0;
  std::uint64_t data_offset = 0;  // start of the data section
  std::size_t tensors = 0;
};

class Gguf {
 public:
  // Opens the set that `path` belongs to: a single file, or any shard of a split set (the others are found beside it).
  // Throws InputError naming file, field or tensor, what was expected and what was found.
  static Gguf open(const std::filesystem::path& path);

  // One in-memory image as a single-file set; the caller keeps `image` alive. For tests and fuzzing.
  static Gguf parse(std::span<const std::uint8_t> image, std::string_view name = "<memory>");

  // The same for a whole set, shard 1 first. open() is this plus finding and mapping the files.
  static Gguf parse_set(std::span<const GgufImage> images);

  Gguf(Gguf&&) noexcept;
  Gguf& operator=(Gguf&&) noexcept;
  ~Gguf();

  const std::string& name() const;  // the path that was opened, for messages
  std::span<const GgufShard> shards() const;
  std::span<const GgufKeyValue> metadata() const;  // of the first shard
  std::span<const GgufTensor> tensors() const;     // of all shards, in shard and file order
  std::uint32_t version() const;

  // Takes data of this set that lies in a mapped file out of the process's memory (see MappedFile::release); nothing
  // for an image in memory.
  void release(const std::uint8_t* data, std::size_t bytes) const;

  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr when absent; hashed
  const GgufValue* find(std::string_view key) const;           // nullptr when absent

  // Lenient readers: any integer type that holds the value in range is accepted (third-party tools write others).
  // Absent: nullopt. Present with a wrong type, or out of range: InputError that names file and key.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // float or integer
  std::optional<bool> boolean(std::string_view key) const;   // bool or integer
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;  // array of integers or bools
  std::optional<std::vector<std::uint64_t>> unsigned_integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;

  // The same for required keys: absent is an InputError.
  std::int64_t require_integer(std::string_view key) const;
  double require_number(std::string_view key) const;
  std::string_view require_string(std::string_view key) const;

 private:
  struct Impl;
  explicit Gguf(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Looks for values that no healthy file holds: NaN or infinity in float data (F16, BF16, F32, F64) or in a
// half-precision block scale, and the invalid MXFP4 exponent 0xFF. Reads the whole tensor. Returns a message that names
// tensor and place (not the file), or nothing when all is well.
std::optional<std::string> find_bad_values(const GgufTensor& tensor);

// The file name of shard `index` (0-based) of `count`: PREFIX-00001-of-00004.gguf; and its inverse.
std::string shard_file_name(std::string_view prefix, int index, int count);
struct ShardName {
  std::string prefix;
  int index = 0;  // 0-based
  int count = 0;
};
std::optional<ShardName> parse_shard_name(std::string_view file_name);

}  // namespace tandem
