// The key-value section of one shard: hashed look-up and lenient typed readers. Internal to the GGUF reader; everybody
// else uses Gguf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/gguf.h"

namespace tandem {

// GGUF value type ids.
enum class GgufType : std::uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};
inline constexpr std::uint32_t kGgufTypeCount = 13;
std::string_view gguf_type_name(std::uint32_t type);

// Text from a file for a message: at most 64 bytes, with everything but printable ASCII escaped, in single quotes.
std::string quote(std::string_view text);

class GgufMetadata {
 public:
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}

  // Adds one pair; `key` must stay valid (it lies in the mapping). False when the key is there already.
  bool add(std::string_view key, std::uint32_t type, GgufValue value);
  void reserve(std::size_t count);

  const std::string& file() const { return file_; }
  const std::vector<GgufKeyValue>& all() const { return pairs_; }
  const GgufKeyValue* find(std::string_view key) const;

  // As in Gguf.
  std::optional<std::int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<std::uint64_t>> unsigned_integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string_view>> strings(std::string_view key) const;

  [[noreturn]] void fail_missing(std::string_view key, std::string_view expected) const;

 private:
  [[noreturn]] void fail_type(const GgufKeyValue& pair, std::string_view expected) const;
  const GgufArray* array(const GgufKeyValue& pair, std::string_view expected) const;

  std::string file_;
  std::vector<GgufKeyValue> pairs_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace tandem
