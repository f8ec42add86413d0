#include "runtime/gguf_metadata.h"

#include <limits>

#include "placement/check.h"

namespace tandem {
namespace {

constexpr std::string_view kTypeNames[kGgufTypeCount] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                         "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::int64_t kLargestSigned = std::numeric_limits<std::int64_t>::max();

std::string describe(const GgufKeyValue& pair) {
  if (const auto* array = std::get_if<GgufArray>(&pair.value)) {
    return fmt::format("an array of {} x {}", array->size(), gguf_type_name(array->element_type));
  }
  const std::string_view type = gguf_type_name(pair.type);
  if (const auto* text = std::get_if<std::string_view>(&pair.value)) return fmt::format("{} {}", type, quote(*text));
  if (const auto* flag = std::get_if<bool>(&pair.value)) return fmt::format("{} {}", type, *flag);
  if (const auto* real = std::get_if<double>(&pair.value)) return fmt::format("{} {}", type, *real);
  if (const auto* whole = std::get_if<std::int64_t>(&pair.value)) return fmt::format("{} {}", type, *whole);
  return fmt::format("{} {}", type, std::get<std::uint64_t>(pair.value));
}

}  // namespace

std::string_view gguf_type_name(std::uint32_t type) {
  CHECK(type < kGgufTypeCount, "{}", type);
  return kTypeNames[type];
}

std::string quote(std::string_view text) {
  constexpr std::size_t kLimit = 64;
  std::string out = "'";
  for (const char letter : text.substr(0, kLimit)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte >= 0x20 && byte < 0x7F) {
      out += letter;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > kLimit) out += "...";
  return out + "'";
}

std::size_t GgufArray::size() const {
  return std::visit([](const auto& list) { return list.size(); }, values);
}

bool GgufMetadata::add(std::string_view key, std::uint32_t type, GgufValue value) {
  if (!index_.emplace(key, pairs_.size()).second) return false;
  pairs_.push_back({std::string(key), type, std::move(value)});
  return true;
}

void GgufMetadata::reserve(std::size_t count) {
  pairs_.reserve(count);
  index_.reserve(count);
}

const GgufKeyValue* GgufMetadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &pairs_[found->second];
}

void GgufMetadata::fail_missing(std::string_view key, std::string_view expected) const {
  fail_input("{}: key '{}': expected {}, found no such key. Fix: use a file made by a converter that knows this model",
             file_, key, expected);
}

void GgufMetadata::fail_type(const GgufKeyValue& pair, std::string_view expected) const {
  fail_input("{}: key {}: expected {}, found {}. Fix: convert the model again with a current converter", file_,
             quote(pair.key), expected, describe(pair));
}

std::optional<std::int64_t> GgufMetadata::integer(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  if (const auto* whole = std::get_if<std::int64_t>(&pair->value)) return *whole;
  const auto* natural = std::get_if<std::uint64_t>(&pair->value);
  if (natural == nullptr) fail_type(*pair, "an integer");
  if (*natural > static_cast<std::uint64_t>(kLargestSigned)) {
    fail_type(*pair, fmt::format("an integer up to {}", kLargestSigned));
  }
  return static_cast<std::int64_t>(*natural);
}

std::optional<double> GgufMetadata::number(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  if (const auto* real = std::get_if<double>(&pair->value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&pair->value)) return static_cast<double>(*whole);
  if (const auto* natural = std::get_if<std::uint64_t>(&pair->value)) return static_cast<double>(*natural);
  fail_type(*pair, "a number");
}

std::optional<bool> GgufMetadata::boolean(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  if (const auto* flag = std::get_if<bool>(&pair->value)) return *flag;
  const auto* whole = std::get_if<std::int64_t>(&pair->value);
  const auto* natural = std::get_if<std::uint64_t>(&pair->value);
  if (whole != nullptr && (*whole == 0 || *whole == 1)) return *whole == 1;
  if (natural != nullptr && *natural <= 1) return *natural == 1;
  fail_type(*pair, "a bool, or 0 or 1");
}

std::optional<std::string_view> GgufMetadata::string(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string_view>(&pair->value);
  if (text == nullptr) fail_type(*pair, "a string");
  return *text;
}

const GgufArray* GgufMetadata::array(const GgufKeyValue& pair, std::string_view expected) const {
  const auto* found = std::get_if<GgufArray>(&pair.value);
  if (found == nullptr) fail_type(pair, expected);
  return found;
}

std::optional<std::vector<std::int64_t>> GgufMetadata::integers(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  const GgufArray* found = array(*pair, "an array of integers");
  if (const auto* signed_list = std::get_if<std::vector<std::int64_t>>(&found->values)) return *signed_list;
  const auto* list = std::get_if<std::vector<std::uint64_t>>(&found->values);
  if (list == nullptr) fail_type(*pair, "an array of integers");
  std::vector<std::int64_t> out;
  out.reserve(list->size());
  for (const std::uint64_t value : *list) {
    if (value > static_cast<std::uint64_t>(kLargestSigned)) {
      fail_type(*pair, fmt::format("integers up to {} (element {} is {})", kLargestSigned, out.size(), value));
    }
    out.push_back(static_cast<std::int64_t>(value));
  }
  return out;
}

std::optional<std::vector<std::uint64_t>> GgufMetadata::unsigned_integers(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  const GgufArray* found = array(*pair, "an array of integers");
  if (const auto* list = std::get_if<std::vector<std::uint64_t>>(&found->values)) return *list;
  const auto* signed_list = std::get_if<std::vector<std::int64_t>>(&found->values);
  if (signed_list == nullptr) fail_type(*pair, "an array of integers");
  std::vector<std::uint64_t> out;
  out.reserve(signed_list->size());
  for (const std::int64_t value : *signed_list) {
    if (value < 0) fail_type(*pair, fmt::format("integers from 0 up (element {} is {})", out.size(), value));
    out.push_back(static_cast<std::uint64_t>(value));
  }
  return out;
}

std::optional<std::vector<double>> GgufMetadata::numbers(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  const GgufArray* found = array(*pair, "an array of numbers");
  if (const auto* reals = std::get_if<std::vector<double>>(&found->values)) return *reals;
  if (const auto* list = std::get_if<std::vector<std::uint64_t>>(&found->values)) {
    return std::vector<double>(list->begin(), list->end());
  }
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found->values)) {
    return std::vector<double>(list->begin(), list->end());
  }
  fail_type(*pair, "an array of numbers");
}

std::optional<std::vector<std::string_view>> GgufMetadata::strings(std::string_view key) const {
  const GgufKeyValue* pair = find(key);
  if (pair == nullptr) return std::nullopt;
  const auto* list = std::get_if<std::vector<std::string_view>>(&array(*pair, "an array of strings")->values);
  if (list == nullptr) fail_type(*pair, "an array of strings");
  return *list;
}

}  // namespace tandem
