// Builds GGUF files for tests: correct ones with little text, and broken ones by overriding single fields.
//
//   GgufBuilder builder;
//   builder.add("general.architecture", "qwen4exp").add("qwen4exp.block_count", std::uint32_t{48});
//   builder.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   builder.tensor("token_embd.weight", DType::Q8_0, {64, 100});         // zeros
//   builder.tensor("blk.0.norm.weight", std::vector<float>{1, 2, 3, 4});  // F32 [4]
//   Gguf gguf = Gguf::open(builder.write(dir / "model.gguf"));
//
// The type of a value is the type of the C++ value: write std::uint32_t{4}, not 4, where it matters. Zero tensors take
// no memory and write() leaves holes in the file, so files of the real model's size are cheap.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/quant.h"

namespace tandem::testing {

// A fresh directory, removed with everything in it at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct TensorSpec {
  std::string name;
  std::uint32_t type_id = 0;
  std::vector<std::int64_t> ne;    // GGUF order, contiguous dimension first
  std::vector<std::uint8_t> data;  // empty: zeros
  // Written or laid out instead of the right value:
  std::optional<std::uint64_t> offset;
  std::optional<std::uint32_t> n_dims;
  std::optional<std::uint64_t> bytes;  // size in the data section; required when type_id or ne make no sense
};

struct KeyValueSpec {
  std::string key;
  std::uint32_t type = 0;           // GGUF value type id
  std::vector<std::uint8_t> bytes;  // the encoded value
};

// GGUF value type ids.
template <typename T>
constexpr std::uint32_t value_type_id() {
  if constexpr (std::same_as<T, std::uint8_t>) return 0;
  if constexpr (std::same_as<T, std::int8_t>) return 1;
  if constexpr (std::same_as<T, std::uint16_t>) return 2;
  if constexpr (std::same_as<T, std::int16_t>) return 3;
  if constexpr (std::same_as<T, std::uint32_t>) return 4;
  if constexpr (std::same_as<T, std::int32_t>) return 5;
  if constexpr (std::same_as<T, float>) return 6;
  if constexpr (std::same_as<T, bool>) return 7;
  if constexpr (std::same_as<T, std::string>) return 8;
  if constexpr (std::same_as<T, std::uint64_t>) return 10;
  if constexpr (std::same_as<T, std::int64_t>) return 11;
  if constexpr (std::same_as<T, double>) return 12;
}
template <typename T>
concept GgufNumber = std::is_arithmetic_v<T> && !std::same_as<T, char>;

class GgufBuilder {
 public:
  // Metadata. Adding a key again replaces its value and keeps its place; add_duplicate does not look.
  template <GgufNumber T>
  GgufBuilder& add(std::string_view key, T value);
  GgufBuilder& add(std::string_view key, std::string_view value);
  GgufBuilder& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  template <GgufNumber T>
  GgufBuilder& add(std::string_view key, const std::vector<T>& values);
  GgufBuilder& add(std::string_view key, const std::vector<std::string>& values);
  GgufBuilder& add_raw(std::string_view key, std::uint32_t type, std::vector<std::uint8_t> bytes);
  GgufBuilder& add_duplicate(std::string_view key, std::uint32_t value);
  GgufBuilder& remove(std::string_view key);

  // Tensors, in file order. The reference stays valid until the next tensor is added or removed; use it to break a
  // field. A name may be added twice.
  TensorSpec& tensor(std::string_view name, DType type, std::vector<std::int64_t> ne,
                     std::vector<std::uint8_t> data = {});
  TensorSpec& tensor(std::string_view name, const std::vector<float>& values, std::vector<std::int64_t> ne = {});
  TensorSpec& find(std::string_view name);  // aborts when absent
  GgufBuilder& remove_tensor(std::string_view name);
  std::vector<TensorSpec>& tensors() { return tensors_; }

  // general.alignment as a key and as the layout of the file; or only the layout.
  GgufBuilder& alignment(std::uint32_t value);
  GgufBuilder& layout_alignment(std::uint64_t value);

  // Header fields, written instead of the right values.
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::int64_t> tensor_count, key_value_count;

  // The whole file in memory. REQUIRES less than 1 GiB.
  std::vector<std::uint8_t> build() const;
  // Position of the data section in build().
  std::uint64_t data_offset() const;
  // Writes the file (sparse where tensors are zero) and returns its path.
  std::filesystem::path write(const std::filesystem::path& path) const;

  // The set as shards PREFIX-0000i-of-0000n.gguf: shard 1 carries the metadata, each shard its tensors and the three
  // split keys. `counts` says how many tensors each shard gets (0 is legal, the sum must be the number of tensors).
  std::vector<GgufBuilder> split(const std::vector<std::size_t>& counts) const;
  std::vector<GgufBuilder> split(std::size_t shards) const;  // evenly
  std::vector<std::filesystem::path> write_split(const std::filesystem::path& prefix, std::size_t shards) const;

 private:
  struct Layout;
  Layout layout() const;
  GgufBuilder& put(std::string_view key, std::uint32_t type, std::vector<std::uint8_t> bytes);

  std::vector<KeyValueSpec> key_values_;
  std::vector<TensorSpec> tensors_;
  std::uint64_t alignment_ = 32;
};

// Writes shards made by split(), perhaps after breaking one: PREFIX-0000i-of-0000n.gguf.
std::vector<std::filesystem::path> write_shards(const std::vector<GgufBuilder>& shards,
                                                const std::filesystem::path& prefix);

std::filesystem::path write_file(const std::filesystem::path& path, std::span<const std::uint8_t> bytes);

// Appends the little-endian bytes of a number; overwrites bytes at a position.
template <GgufNumber T>
void append(std::vector<std::uint8_t>& bytes, T value) {
  const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}
template <GgufNumber T>
void poke(std::vector<std::uint8_t>& bytes, std::size_t position, T value) {
  std::memcpy(bytes.data() + position, &value, sizeof value);
}
// Position just after the first occurrence of `text` (a key, a tensor name); aborts when absent.
std::size_t position_after(std::span<const std::uint8_t> bytes, std::string_view text);

// Byte positions of the half-precision scales in a block, -1 for none.
struct BlockHalves {
  int d = -1, second = -1;
};
BlockHalves block_halves(DType type);

// Pseudo-random data for `elements` values of a weight type, always the same for one seed. Codes are uniform; scales
// are such that values stay within about +-4 and are never NaN. REQUIRES a float or block type.
std::vector<std::uint8_t> random_weights(DType type, std::size_t elements, std::uint32_t seed);

template <GgufNumber T>
GgufBuilder& GgufBuilder::add(std::string_view key, T value) {
  std::vector<std::uint8_t> bytes;
  append(bytes, value);
  return put(key, value_type_id<T>(), std::move(bytes));
}
template <GgufNumber T>
GgufBuilder& GgufBuilder::add(std::string_view key, const std::vector<T>& values) {
  std::vector<std::uint8_t> bytes;
  append(bytes, value_type_id<T>());
  append(bytes, static_cast<std::uint64_t>(values.size()));
  for (const T value : values) append(bytes, value);
  return put(key, 9, std::move(bytes));
}

}  // namespace tandem::testing
