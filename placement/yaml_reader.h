// Strict reading of the YAML files that people write: every value knows its line, every mistake is an InputError
//   FILE:LINE:COLUMN: KEY: expected X, found Y. Fix: Z
// Refused besides wrong types: unknown keys (with the nearest known one), keys given twice, anchors, aliases and tags,
// several documents in a file, an empty file, files over 1 MiB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

struct IntRange {
  int first = 0, last = 0;  // inclusive
};

class YamlValue {
 public:
  enum class Kind : std::uint8_t { kNothing, kScalar, kList, kMap };
  struct Entry;

  Kind kind() const { return kind_; }
  // "FILE:LINE:COLUMN: KEY", the start of every message about this value.
  std::string where() const;
  int line() const { return line_; }
  // Throws the InputError. `fix` may be empty.
  [[noreturn]] void fail(std::string_view expected, std::string_view fix = {}) const;
  // The same with what was found in other words than the value itself.
  [[noreturn]] void fail_found(std::string_view expected, std::string_view found, std::string_view fix = {}) const;

  // ---- typed access; each throws an InputError when the value is something else ----
  std::string text() const;  // any scalar; not empty
  bool boolean() const;      // true or false
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::optional<std::int64_t> integer_or_auto(std::int64_t least, std::int64_t most) const;  // auto: empty
  double number(double least, double most) const;
  // "24GiB", "1.5 GB", "0". A number other than 0 without a unit is refused: it is never meant.
  std::int64_t bytes() const;
  std::optional<std::int64_t> bytes_or_auto() const;  // auto: empty
  // Index of one of `words`.
  std::size_t word(std::span<const std::string> words) const;
  // "5" or "3-7" with 0 <= first <= last <= most; a list of such, at least one.
  std::vector<IntRange> ranges(int most) const;
  // Whether the value is the plain word `auto` (quoted it is a text).
  bool is_auto() const { return is_plain("auto"); }
  bool is_plain(std::string_view word) const { return kind_ == Kind::kScalar && plain_ && text_ == word; }
  // Elements; none when nothing is given after the key.
  const std::vector<YamlValue>& list() const;
  // Keys and values of a map whose keys are no fixed names (YamlMap is for those that are).
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  friend class YamlBuilder;
  friend class YamlMap;
  std::string found() const;  // the value for a message
  std::int64_t integer(std::int64_t least, std::int64_t most, std::string_view prefix) const;
  std::int64_t bytes(std::string_view prefix) const;

  Kind kind_ = Kind::kNothing;
  bool plain_ = true;  // a scalar without quotes
  std::string text_, path_;
  std::shared_ptr<const std::string> file_;
  int line_ = 1, column_ = 1;  // from 1
  std::vector<YamlValue> items_;
  std::vector<Entry> entries_;
};

struct YamlValue::Entry {
  YamlValue key, value;  // the key is a scalar; its path is that of the map
};

// A map with a fixed set of keys.
class YamlMap {
 public:
  // Throws InputError when `value` is no map or has other keys than these. Nothing after the key is an empty map.
  YamlMap(const YamlValue& value, std::vector<std::string> known);
  const YamlValue* find(std::string_view key) const;  // null when absent. REQUIRES a known key
  const YamlValue& need(std::string_view key) const;  // throws InputError when absent

  // Reads a key into `out` when it is there.
  void read(std::string_view key, std::string& out) const;
  void read(std::string_view key, bool& out) const;
  void read(std::string_view key, int& out, int least, int most) const;
  void read(std::string_view key, double& out, double least, double most) const;
  void read(std::string_view key, std::int64_t& out) const;                             // bytes
  void read(std::string_view key, std::optional<std::int64_t>& out) const;              // bytes or auto (empty)
  void read(std::string_view key, std::optional<int>& out, int least, int most) const;  // or auto (empty)
  template <typename Enum>
  void read_word(std::string_view key, Enum& out, std::span<const std::string> words) const {
    if (const YamlValue* value = find(key)) out = static_cast<Enum>(value->word(words));
  }

 private:
  const YamlValue& value_;
  std::vector<std::string> known_;
};

// The one document of a file. `what` names it in messages ("policy").
YamlValue read_yaml(const std::filesystem::path& path, std::string_view what);
// The same from text; `name` stands for the file.
YamlValue parse_yaml(const std::string& text, const std::string& name, std::string_view what);

}  // namespace tandem
