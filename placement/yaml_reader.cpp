#include "placement/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "placement/check.h"
#include "placement/files.h"
#include "placement/suggest.h"
#include "placement/units.h"

namespace tandem {

// Builds the tree from the parser's events: the library's own nodes keep neither the marks of keys nor quotes.
class YamlBuilder : public YAML::EventHandler {
 public:
  explicit YamlBuilder(const std::string& file) : file_(std::make_shared<const std::string>(file)) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(make(mark, {}, anchor, YamlValue::Kind::kNothing));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    make(mark, {}, 0, YamlValue::Kind::kNothing).fail_found("the value itself", "an alias", "write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    YamlValue value = make(mark, tag, anchor, YamlValue::Kind::kScalar);
    value.plain_ = tag != "!";
    value.text_ = text;
    add(std::move(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_.push_back({make(mark, tag, anchor, YamlValue::Kind::kList), std::nullopt});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_.push_back({make(mark, tag, anchor, YamlValue::Kind::kMap), std::nullopt});
  }
  void OnMapEnd() override { close(); }

  YamlValue root;

 private:
  struct Open {
    YamlValue value;
    std::optional<YamlValue> key;  // of a map, read and waiting for its value
  };

  YamlValue make(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlValue::Kind kind) const {
    YamlValue value;
    value.kind_ = kind;
    value.file_ = file_;
    // After an empty value the parser points at what follows; the key is the better place.
    const YamlValue* key = open_.empty() || !open_.back().key ? nullptr : &*open_.back().key;
    const bool at_key = kind == YamlValue::Kind::kNothing && key != nullptr;
    value.line_ = at_key ? key->line_ : mark.line + 1;
    value.column_ = at_key ? key->column_ : mark.column + 1;
    value.path_ = path();
    if (anchor != 0) value.fail_found("a plain value", "an anchor", "write the value out where it is needed");
    if (!tag.empty() && tag != "?" && tag != "!")
      value.fail_found("a plain value", fmt::format("the tag {}", tag), "leave the tag out");
    return value;
  }

  // The dotted name of what is read next.
  std::string path() const {
    if (open_.empty()) return {};
    const Open& parent = open_.back();
    if (parent.value.kind_ == YamlValue::Kind::kList)
      return fmt::format("{}[{}]", parent.value.path_, parent.value.items_.size());
    if (!parent.key) return parent.value.path_;
    return parent.value.path_.empty() ? parent.key->text_ : parent.value.path_ + "." + parent.key->text_;
  }

  void add(YamlValue value) {
    if (open_.empty()) {
      root = std::move(value);
      return;
    }
    Open& parent = open_.back();
    if (parent.value.kind_ == YamlValue::Kind::kList) {
      parent.value.items_.push_back(std::move(value));
    } else if (!parent.key) {
      if (value.kind_ != YamlValue::Kind::kScalar) value.fail_found("a key", value.found(), "write KEY: VALUE");
      for (const auto& [key, other] : parent.value.entries_) {
        if (key.text_ != value.text_) continue;
        value.fail_found("each key once", fmt::format("{} again (it is in line {})", value.found(), key.line_),
                         "remove one of the two");
      }
      parent.key = std::move(value);
    } else {
      parent.value.entries_.push_back({std::move(*parent.key), std::move(value)});
      parent.key.reset();
    }
  }

  void close() {
    YamlValue value = std::move(open_.back().value);
    open_.pop_back();
    add(std::move(value));
  }

  std::shared_ptr<const std::string> file_;
  std::vector<Open> open_;
};

// ---- messages -------------------------------------------------------------------------------------------------------

std::string YamlValue::where() const {
  const std::string place = fmt::format("{}:{}:{}", *file_, line_, column_);
  return path_.empty() ? place : place + ": " + path_;
}

std::string YamlValue::found() const {
  constexpr std::size_t kMost = 60;
  switch (kind_) {
    case Kind::kNothing:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "keys and values";
    case Kind::kScalar:
      break;
  }
  return fmt::format("\"{}\"", text_.size() <= kMost ? text_ : text_.substr(0, kMost - 3) + "...");
}

void YamlValue::fail_found(std::string_view expected, std::string_view found, std::string_view fix) const {
  fail_input("{}: expected {}, found {}{}{}", where(), expected, found, fix.empty() ? "" : ". Fix: ", fix);
}

void YamlValue::fail(std::string_view expected, std::string_view fix) const {
  fail_found(expected, found(), fix);
}

// ---- values ---------------------------------------------------------------------------------------------------------

namespace {

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || at != end) return std::nullopt;
  return value;
}

std::optional<IntRange> parse_range(const std::string& text) {
  const std::size_t dash = text.find('-');
  const auto number = [](const std::string& digits) -> std::optional<int> {
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return parse_number<int>(digits);
  };
  const std::optional<int> first = number(text.substr(0, dash));
  const std::optional<int> last = dash == std::string::npos ? first : number(text.substr(dash + 1));
  if (!first || !last || *first > *last) return std::nullopt;
  return IntRange{*first, *last};
}

}  // namespace

std::string YamlValue::text() const {
  if (kind_ != Kind::kScalar || text_.empty()) fail("a text");
  return text_;
}

bool YamlValue::boolean() const {
  if (kind_ != Kind::kScalar || !plain_ || (text_ != "true" && text_ != "false")) fail("true or false");
  return text_ == "true";
}

std::int64_t YamlValue::integer(std::int64_t least, std::int64_t most, std::string_view prefix) const {
  std::optional<std::int64_t> value;
  if (kind_ == Kind::kScalar && plain_) value = parse_number<std::int64_t>(text_);
  if (!value || *value < least || *value > most)
    fail(fmt::format("{}a whole number from {} to {}", prefix, least, most));
  return *value;
}

std::int64_t YamlValue::integer(std::int64_t least, std::int64_t most) const {
  return integer(least, most, "");
}

std::optional<std::int64_t> YamlValue::integer_or_auto(std::int64_t least, std::int64_t most) const {
  if (is_auto()) return std::nullopt;
  return integer(least, most, "auto or ");
}

double YamlValue::number(double least, double most) const {
  std::optional<double> value;
  if (kind_ == Kind::kScalar && plain_) value = parse_number<double>(text_);
  if (!value || !(*value >= least && *value <= most)) fail(fmt::format("a number from {} to {}", least, most));
  return *value;
}

std::int64_t YamlValue::bytes(std::string_view prefix) const {
  const std::optional<std::int64_t> value = kind_ == Kind::kScalar && plain_ ? parse_bytes(text_) : std::nullopt;
  if (!value) fail(fmt::format("{}a size such as 24GiB, 512MiB or 1.5GB", prefix));
  const bool unit = text_.find_first_not_of("0123456789.") != std::string::npos;
  if (!unit && *value != 0)
    fail("a size with its unit", fmt::format("{0}GiB, {0}MiB or, for single bytes, {0}B", text_));
  return *value;
}

std::int64_t YamlValue::bytes() const {
  return bytes("");
}

std::optional<std::int64_t> YamlValue::bytes_or_auto() const {
  if (is_auto()) return std::nullopt;
  return bytes("auto or ");
}

std::size_t YamlValue::word(std::span<const std::string> words) const {
  const auto at = kind_ == Kind::kScalar ? std::find(words.begin(), words.end(), text_) : words.end();
  if (at != words.end()) return static_cast<std::size_t>(at - words.begin());
  std::string all;
  for (const std::string& word : words)
    all += (&word == &words.front() ? "" : &word == &words.back() ? " or " : ", ") + word;
  const std::string near = kind_ == Kind::kScalar ? nearest_name(text_, words) : std::string{};
  fail(all, near.empty() ? "" : "did you mean " + near + "?");
}

std::vector<IntRange> YamlValue::ranges(int most) const {
  const std::string expected =
      fmt::format("numbers from 0 to {} and ranges of them, such as 5, 0-3 or [1, 5, 7-9]", most);
  if (kind_ == Kind::kMap || kind_ == Kind::kNothing || (kind_ == Kind::kList && items_.empty())) fail(expected);
  std::vector<IntRange> all;
  for (const YamlValue& item : kind_ == Kind::kList ? std::span<const YamlValue>(items_) : std::span(this, 1)) {
    std::optional<IntRange> range;
    if (item.kind_ == Kind::kScalar && item.plain_) range = parse_range(item.text_);
    if (!range || range->last > most) item.fail(expected);
    all.push_back(*range);
  }
  return all;
}

const std::vector<YamlValue>& YamlValue::list() const {
  if (kind_ != Kind::kList && kind_ != Kind::kNothing) fail("a list", "begin each element with a dash");
  return items_;
}

// ---- maps -----------------------------------------------------------------------------------------------------------

YamlMap::YamlMap(const YamlValue& value, std::vector<std::string> known) : value_(value), known_(std::move(known)) {
  if (value.kind_ != YamlValue::Kind::kMap && value.kind_ != YamlValue::Kind::kNothing)
    value.fail("keys and values", "write KEY: VALUE");
  for (const auto& [key, other] : value.entries_) {
    if (std::find(known_.begin(), known_.end(), key.text_) != known_.end()) continue;
    const std::string near = nearest_name(key.text_, known_);
    std::string all;
    for (const std::string& name : known_) all += (all.empty() ? "" : ", ") + name;
    key.fail("a known key", near.empty() ? "use one of " + all : "did you mean " + near + "?");
  }
}

const YamlValue* YamlMap::find(std::string_view key) const {
  DCHECK(std::find(known_.begin(), known_.end(), key) != known_.end(), "{}", key);
  for (const auto& [known, value] : value_.entries_)
    if (known.text_ == key) return &value;
  return nullptr;
}

const YamlValue& YamlMap::need(std::string_view key) const {
  if (const YamlValue* value = find(key)) return *value;
  value_.fail_found(fmt::format("the key {}", key), "none", "add it");
}

void YamlMap::read(std::string_view key, std::string& out) const {
  if (const YamlValue* value = find(key)) out = value->text();
}

void YamlMap::read(std::string_view key, bool& out) const {
  if (const YamlValue* value = find(key)) out = value->boolean();
}

void YamlMap::read(std::string_view key, int& out, int least, int most) const {
  if (const YamlValue* value = find(key)) out = static_cast<int>(value->integer(least, most));
}

void YamlMap::read(std::string_view key, double& out, double least, double most) const {
  if (const YamlValue* value = find(key)) out = value->number(least, most);
}

void YamlMap::read(std::string_view key, std::int64_t& out) const {
  if (const YamlValue* value = find(key)) out = value->bytes();
}

void YamlMap::read(std::string_view key, std::optional<std::int64_t>& out) const {
  if (const YamlValue* value = find(key)) out = value->bytes_or_auto();
}

void YamlMap::read(std::string_view key, std::optional<int>& out, int least, int most) const {
  const YamlValue* value = find(key);
  if (value == nullptr) return;
  const std::optional<std::int64_t> number = value->integer_or_auto(least, most);
  out = number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

// ---- files ----------------------------------------------------------------------------------------------------------

YamlValue parse_yaml(const std::string& text, const std::string& name, std::string_view what) {
  YamlBuilder builder(name);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder) || builder.root.kind() == YamlValue::Kind::kNothing)
      fail_input("{}: expected a {}, found an empty file", name, what);
    YamlBuilder second(name);
    if (parser.HandleNextDocument(second))
      fail_input("{}: expected one document, found another. Fix: remove everything from the second --- on", name);
  } catch (const YAML::Exception& error) {
    fail_input("{}:{}:{}: expected YAML, found a mistake: {}", name, error.mark.line + 1, error.mark.column + 1,
               error.msg);
  }
  return builder.root;
}

YamlValue read_yaml(const std::filesystem::path& path, std::string_view what) {
  constexpr std::uintmax_t kMost = 1U << 20;
  std::error_code unknown;
  const std::uintmax_t size = std::filesystem::file_size(path, unknown);
  if (!unknown && size > kMost)
    fail_input("{}: expected a {} (YAML, at most 1 MiB), found a file of {}", path.string(), what,
               format_bytes(static_cast<std::int64_t>(size)));
  return parse_yaml(read_file(path, what), path.string(), what);
}

}  // namespace tandem
