#include "runtime/gguf_directory.h"

#include <algorithm>
#include <bit>
#include <new>

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF fields are read in the machine's byte order");

constexpr std::size_t kHeaderBytes = 24;
constexpr std::uint64_t kLongestKey = 1ULL << 30;
constexpr std::uint64_t kLongestArray = 1ULL << 30;
// The least that one entry takes in the file; a count beyond the rest of the file is refused before anything is
// reserved for it.
constexpr std::uint64_t kSmallestKeyValue = 8 + 1 + 4 + 1;
constexpr std::uint64_t kSmallestTensorInfo = 8 + 4 + 4 + 8;
constexpr std::uint32_t kDefaultAlignment = 32;

std::size_t value_bytes(GgufType type) {
  switch (type) {
    case GgufType::U8:
    case GgufType::I8:
    case GgufType::Bool:
      return 1;
    case GgufType::U16:
    case GgufType::I16:
      return 2;
    case GgufType::U32:
    case GgufType::I32:
    case GgufType::F32:
      return 4;
    case GgufType::U64:
    case GgufType::I64:
    case GgufType::F64:
    case GgufType::String:  // its length
      return 8;
    case GgufType::Array:
      break;
  }
  CHECK(false);
  return 0;
}

class Parser {
 public:
  Parser(std::span<const std::uint8_t> image, std::string file)
      : image_(image),
        directory_{GgufMetadata(std::move(file)), {}, 0, 0},
        reader_(image, directory_.metadata.file()) {}

  void run();
  GgufDirectory take() { return std::move(directory_); }

 private:
  const std::string& file() const { return directory_.metadata.file(); }
  void read_magic_and_version();
  std::size_t read_count(std::string_view what, std::uint64_t smallest_entry);
  void read_key_value(std::size_t index, std::size_t count);
  GgufValue read_value(std::uint32_t type, std::string_view what);
  GgufArray read_array(std::string_view what);
  std::vector<std::string_view> read_strings(std::size_t count, std::string_view what);
  std::uint32_t alignment() const;

  template <typename Stored, typename Wide>
  std::vector<Wide> read_numbers(std::size_t count, std::string_view what) {
    const std::uint8_t* bytes = reader_.take(count * sizeof(Stored), what);
    std::vector<Wide> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      Stored stored;
      std::memcpy(&stored, bytes + i * sizeof stored, sizeof stored);
      values[i] = static_cast<Wide>(stored);
    }
    return values;
  }

  std::span<const std::uint8_t> image_;
  GgufDirectory directory_;
  ByteReader reader_;
};

void Parser::read_magic_and_version() {
  if (image_.size() >= 4) {
    const std::string_view magic = reader_.read_text(4, "magic");
    if (magic != "GGUF") {
      fail_input("{}: magic: expected 'GGUF', found {}. Fix: give a GGUF model file", file(), quote(magic));
    }
  }
  if (image_.size() < kHeaderBytes) {
    fail_input("{}: header: expected at least {} bytes, found {}. Fix: {}", file(), kHeaderBytes, image_.size(),
               kFixDamaged);
  }
  const auto version = reader_.read<std::uint32_t>("version");
  directory_.version = version;
  if (version == 2 || version == 3) return;
  std::string_view hint = "an unknown version";
  std::string_view fix = "update this program, or convert the model to GGUF version 3";
  if (version == 0) {
    hint = "no such version";
    fix = kFixDamaged;
  } else if (version == 1) {
    hint = "the first layout, with 32-bit sizes";
    fix = "convert the model again with a current converter";
  } else if ((version & 0xFFFFU) == 0) {
    hint = "a big-endian file: the bytes are swapped";
    fix = "use the little-endian file of this model";
  }
  fail_input("{}: version: expected 2 or 3, found {} ({}). Fix: {}", file(), version, hint, fix);
}

std::size_t Parser::read_count(std::string_view what, std::uint64_t smallest_entry) {
  const auto count = reader_.read<std::int64_t>(what);
  const std::uint64_t most = image_.size() / smallest_entry;
  if (count < 0 || static_cast<std::uint64_t>(count) > most) {
    fail_input("{}: {}: expected 0 to {} (a file of {} bytes has no room for more), found {}. Fix: {}", file(), what,
               most, image_.size(), count, kFixDamaged);
  }
  return static_cast<std::size_t>(count);
}

void Parser::read_key_value(std::size_t index, std::size_t count) {
  const std::string number = fmt::format("key {} of {}", index + 1, count);
  const std::size_t start = reader_.position();
  const auto length = reader_.read<std::uint64_t>(number + ": length");
  if (length == 0 || length > kLongestKey || length > reader_.left()) {
    fail_input("{}: {} at byte {}: expected a length of 1 to {} bytes, found {}. Fix: {}", file(), number, start,
               std::min<std::uint64_t>(kLongestKey, reader_.left()), length, kFixDamaged);
  }
  const std::string_view key = reader_.read_text(length, number);
  const std::string what = "key " + quote(key);
  const auto type = reader_.read<std::uint32_t>(what + ": value type");
  if (type >= kGgufTypeCount) {
    fail_input("{}: {}: expected a value type of 0 to {}, found {}. Fix: {}", file(), what, kGgufTypeCount - 1, type,
               kFixDamaged);
  }
  if (!directory_.metadata.add(key, type, read_value(type, what))) {
    fail_input("{}: {}: expected every key once, found it again as {}. Fix: convert the model again", file(), what,
               number);
  }
}

GgufValue Parser::read_value(std::uint32_t type, std::string_view what) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::U8:
      return std::uint64_t{reader_.read<std::uint8_t>(what)};
    case GgufType::U16:
      return std::uint64_t{reader_.read<std::uint16_t>(what)};
    case GgufType::U32:
      return std::uint64_t{reader_.read<std::uint32_t>(what)};
    case GgufType::U64:
      return reader_.read<std::uint64_t>(what);
    case GgufType::I8:
      return std::int64_t{reader_.read<std::int8_t>(what)};
    case GgufType::I16:
      return std::int64_t{reader_.read<std::int16_t>(what)};
    case GgufType::I32:
      return std::int64_t{reader_.read<std::int32_t>(what)};
    case GgufType::I64:
      return reader_.read<std::int64_t>(what);
    case GgufType::F32:
      return double{reader_.read<float>(what)};
    case GgufType::F64:
      return reader_.read<double>(what);
    case GgufType::Bool:
      return reader_.read<std::uint8_t>(what) != 0;
    case GgufType::String: {
      const auto length = reader_.read<std::uint64_t>(what);
      return reader_.read_text(length, what);
    }
    case GgufType::Array:
      return read_array(what);
  }
  CHECK(false, "value type {}", type);
  return {};
}

GgufArray Parser::read_array(std::string_view what) {
  GgufArray array;
  array.element_type = reader_.read<std::uint32_t>(what);
  const auto type = static_cast<GgufType>(array.element_type);
  if (array.element_type >= kGgufTypeCount || type == GgufType::Array) {
    fail_input("{}: {}: expected an array element type of 0 to {} other than 9 (array), found {}. Fix: {}", file(),
               what, kGgufTypeCount - 1, array.element_type, kFixDamaged);
  }
  const auto count = reader_.read<std::uint64_t>(what);
  const std::uint64_t most = std::min<std::uint64_t>(kLongestArray, reader_.left() / value_bytes(type));
  if (count > most) {
    fail_input(
        "{}: {}: expected an array of at most {} x {} (the limit is {}, the file has {} bytes left), found {}. Fix: {}",
        file(), what, most, gguf_type_name(array.element_type), kLongestArray, reader_.left(), count, kFixDamaged);
  }
  switch (type) {
    case GgufType::U8:
      array.values = read_numbers<std::uint8_t, std::uint64_t>(count, what);
      break;
    case GgufType::U16:
      array.values = read_numbers<std::uint16_t, std::uint64_t>(count, what);
      break;
    case GgufType::U32:
      array.values = read_numbers<std::uint32_t, std::uint64_t>(count, what);
      break;
    case GgufType::U64:
      array.values = read_numbers<std::uint64_t, std::uint64_t>(count, what);
      break;
    case GgufType::I8:
      array.values = read_numbers<std::int8_t, std::int64_t>(count, what);
      break;
    case GgufType::I16:
      array.values = read_numbers<std::int16_t, std::int64_t>(count, what);
      break;
    case GgufType::I32:
      array.values = read_numbers<std::int32_t, std::int64_t>(count, what);
      break;
    case GgufType::I64:
      array.values = read_numbers<std::int64_t, std::int64_t>(count, what);
      break;
    case GgufType::F32:
      array.values = read_numbers<float, double>(count, what);
      break;
    case GgufType::F64:
      array.values = read_numbers<double, double>(count, what);
      break;
    case GgufType::Bool: {
      auto flags = read_numbers<std::uint8_t, std::uint64_t>(count, what);
      for (std::uint64_t& flag : flags) flag = flag != 0 ? 1 : 0;
      array.values = std::move(flags);
      break;
    }
    case GgufType::String:
      array.values = read_strings(count, what);
      break;
    case GgufType::Array:
      CHECK(false);
  }
  return array;
}

// A tokenizer has 250,000 strings: no allocation and no formatting per element.
std::vector<std::string_view> Parser::read_strings(std::size_t count, std::string_view what) {
  std::vector<std::string_view> strings;
  strings.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto length = reader_.read<std::uint64_t>(what);
    if (length > reader_.left()) {
      fail_input(
          "{}: {}: element {} of {}: expected a string of at most {} bytes (the rest of the file), found {}. Fix: {}",
          file(), what, i, count, reader_.left(), length, kFixDamaged);
    }
    strings.push_back(reader_.read_text(length, what));
  }
  return strings;
}

std::uint32_t Parser::alignment() const {
  const GgufKeyValue* pair = directory_.metadata.find("general.alignment");
  if (pair == nullptr) return kDefaultAlignment;
  const auto* value = std::get_if<std::uint64_t>(&pair->value);
  if (static_cast<GgufType>(pair->type) != GgufType::U32 || value == nullptr) {
    fail_input("{}: key 'general.alignment': expected a u32, found type {}. Fix: convert the model again", file(),
               gguf_type_name(pair->type));
  }
  if (!std::has_single_bit(*value)) {
    fail_input("{}: key 'general.alignment': expected a power of two, found {}. Fix: convert the model again", file(),
               *value);
  }
  return static_cast<std::uint32_t>(*value);
}

void Parser::run() {
  read_magic_and_version();
  const std::size_t tensors = read_count("tensor count", kSmallestTensorInfo);
  const std::size_t pairs = read_count("key count", kSmallestKeyValue);
  directory_.metadata.reserve(pairs);
  for (std::size_t i = 0; i < pairs; ++i) read_key_value(i, pairs);
  const std::uint32_t align = alignment();
  directory_.tensors = read_tensor_infos(reader_, tensors, file());
  directory_.data_offset = place_tensors(directory_.tensors, image_, reader_.position(), align, file());
}

}  // namespace

GgufDirectory parse_directory(std::span<const std::uint8_t> image, std::string file) {
  const std::string name = file;
  try {
    Parser parser(image, std::move(file));
    parser.run();
    return parser.take();
  } catch (const std::bad_alloc&) {
    fail_input("{}: directory: expected it to fit in memory, found that memory ran out. Fix: close other programs",
               name);
  }
}

}  // namespace tandem
