#include "runtime/gguf.h"

#include <unordered_map>
#include <utility>

#include "placement/check.h"
#include "runtime/gguf_directory.h"
#include "runtime/gguf_metadata.h"
#include "runtime/mapped_file.h"

namespace tandem {
namespace {

constexpr std::string_view kExtension = ".gguf";
constexpr std::int64_t kMostShards = 99999;  // five digits in the file name
constexpr std::string_view kFixShards = "download all shards of one release into one directory, under their own names";

// The split keys of one shard; a file without split.count is a set of one.
struct SplitKeys {
  std::int64_t count = 1;
  std::int64_t number = 0;
};

SplitKeys split_keys(const GgufMetadata& metadata) {
  SplitKeys keys;
  keys.count = metadata.integer("split.count").value_or(1);
  if (keys.count < 0 || keys.count > kMostShards) {
    fail_input("{}: key 'split.count': expected 0 to {}, found {}. Fix: {}", metadata.file(), kMostShards, keys.count,
               kFixDamaged);
  }
  if (keys.count == 0) keys.count = 1;  // what merging tools leave behind
  const std::optional<std::int64_t> number = metadata.integer("split.no");
  if (!number && keys.count > 1) metadata.fail_missing("split.no", "the number of this shard");
  keys.number = number.value_or(0);
  return keys;
}

// Shard `index` of a set of `count` must say so itself.
void check_split_keys(const GgufMetadata& metadata, std::size_t index, std::size_t count) {
  const SplitKeys keys = split_keys(metadata);
  if (std::cmp_not_equal(keys.count, count)) {
    fail_input("{}: key 'split.count': expected {} like the set, found {}. Fix: {}", metadata.file(), count, keys.count,
               kFixShards);
  }
  if (std::cmp_not_equal(keys.number, index)) {
    fail_input("{}: key 'split.no': expected {} (this file is shard {} of {}), found {}. Fix: {}", metadata.file(),
               index, index + 1, count, keys.number, kFixShards);
  }
}

struct OpenShard {
  GgufDirectory directory;
  std::uint64_t file_bytes = 0;
  std::optional<MappedFile> mapping;
};

OpenShard map_shard(const std::filesystem::path& path) {
  MappedFile mapping(path);
  const std::span<const std::uint8_t> bytes = mapping.bytes();
  return {parse_directory(bytes, path.string()), bytes.size(), std::move(mapping)};
}

// Every shard must be there before the first is read: one message for all that are missing.
void check_shards_exist(const std::vector<std::filesystem::path>& paths, const std::string& opened) {
  std::size_t missing = 0;
  std::string first;
  for (const std::filesystem::path& path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) continue;
    if (missing++ == 0) first = path.string();
  }
  if (missing == 0) return;
  fail_input("{}: shards: expected all {} in one directory, found {} missing, first {}. Fix: {}", opened, paths.size(),
             missing, first, kFixShards);
}

std::vector<OpenShard> open_shards(const std::filesystem::path& path) {
  const std::string opened = path.string();
  std::vector<OpenShard> shards;
  shards.push_back(map_shard(path));
  const SplitKeys keys = split_keys(shards[0].directory.metadata);
  const std::string file_name = path.filename().string();
  const std::optional<ShardName> name = parse_shard_name(file_name);
  if (keys.count == 1) {
    if (name && name->count > 1) {
      fail_input("{}: key 'split.count': expected {} by the file name, found {}. Fix: {}", opened, name->count,
                 shards[0].directory.metadata.find("split.count") == nullptr ? "no such key" : "1", kFixShards);
    }
    return shards;
  }
  if (!name) {
    fail_input("{}: file name: expected PREFIX-{:05}-of-{:05}{}, as this is one shard of {}, found '{}'. Fix: {}",
               opened, keys.number + 1, keys.count, kExtension, keys.count, file_name, kFixShards);
  }
  const auto count = static_cast<std::size_t>(name->count);
  const auto index = static_cast<std::size_t>(name->index);
  check_split_keys(shards[0].directory.metadata, index, count);
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < name->count; ++i)
    paths.push_back(path.parent_path() / shard_file_name(name->prefix, i, name->count));
  check_shards_exist(paths, opened);
  OpenShard first_opened = std::move(shards[0]);
  shards.clear();
  for (std::size_t i = 0; i < count; ++i) shards.push_back(i == index ? std::move(first_opened) : map_shard(paths[i]));
  return shards;
}

}  // namespace

struct Gguf::Impl {
  std::string name;
  std::vector<GgufShard> shards;
  std::vector<MappedFile> mappings;
  std::vector<GgufTensor> tensors;
  std::unordered_map<std::string_view, std::size_t> index;  // keys lie in `tensors`
  std::uint32_t version = 0;
  GgufMetadata metadata{""};

  static std::unique_ptr<Impl> merge(std::vector<OpenShard> parts, std::string name);
  void index_tensors();
};

void Gguf::Impl::index_tensors() {
  index.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [found, fresh] = index.emplace(tensors[i].name, i);
    if (fresh) continue;
    const GgufTensor& other = tensors[found->second];
    fail_input("{}: tensor {}: expected every name once in the set, found it in {} too. Fix: {}",
               shards[static_cast<std::size_t>(tensors[i].shard)].path.string(), quote(tensors[i].name),
               shards[static_cast<std::size_t>(other.shard)].path.string(), kFixShards);
  }
}

std::unique_ptr<Gguf::Impl> Gguf::Impl::merge(std::vector<OpenShard> parts, std::string name) {
  auto impl = std::make_unique<Impl>();
  impl->name = std::move(name);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    OpenShard& part = parts[i];
    check_split_keys(part.directory.metadata, i, parts.size());
    impl->shards.push_back(
        {part.directory.metadata.file(), part.file_bytes, part.directory.data_offset, part.directory.tensors.size()});
    for (GgufTensor& tensor : part.directory.tensors) {
      tensor.shard = static_cast<int>(i);
      impl->tensors.push_back(std::move(tensor));
    }
    if (part.mapping) impl->mappings.push_back(std::move(*part.mapping));
  }
  for (std::size_t i = 0; parts.size() > 1 && i < parts.size(); ++i) {
    const GgufMetadata& metadata = parts[i].directory.metadata;
    const std::optional<std::int64_t> total = metadata.integer("split.tensors.count");
    if (!total && i == 0) metadata.fail_missing("split.tensors.count", "the number of tensors in all shards");
    if (total && std::cmp_not_equal(*total, impl->tensors.size())) {
      fail_input("{}: key 'split.tensors.count': expected {}, the number of tensors in all shards, found {}. Fix: {}",
                 metadata.file(), impl->tensors.size(), *total, kFixShards);
    }
  }
  impl->index_tensors();
  impl->version = parts[0].directory.version;
  impl->metadata = std::move(parts[0].directory.metadata);
  return impl;
}

Gguf Gguf::open(const std::filesystem::path& path) {
  return Gguf(Impl::merge(open_shards(path), path.string()));
}

Gguf Gguf::parse(std::span<const std::uint8_t> image, std::string_view name) {
  const GgufImage images[] = {{std::string(name), image}};
  return parse_set(images);
}

Gguf Gguf::parse_set(std::span<const GgufImage> images) {
  CHECK(!images.empty());
  std::vector<OpenShard> parts;
  for (const GgufImage& image : images) {
    parts.push_back({parse_directory(image.bytes, image.name), image.bytes.size(), std::nullopt});
  }
  return Gguf(Impl::merge(std::move(parts), images[0].name));
}

Gguf::Gguf(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Gguf::Gguf(Gguf&&) noexcept = default;
Gguf& Gguf::operator=(Gguf&&) noexcept = default;
Gguf::~Gguf() = default;

const std::string& Gguf::name() const {
  return impl_->name;
}
std::span<const GgufShard> Gguf::shards() const {
  return impl_->shards;
}
std::span<const GgufKeyValue> Gguf::metadata() const {
  return impl_->metadata.all();
}
std::span<const GgufTensor> Gguf::tensors() const {
  return impl_->tensors;
}
std::uint32_t Gguf::version() const {
  return impl_->version;
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->tensors[found->second];
}

const GgufValue* Gguf::find(std::string_view key) const {
  const GgufKeyValue* pair = impl_->metadata.find(key);
  return pair == nullptr ? nullptr : &pair->value;
}

std::optional<std::int64_t> Gguf::integer(std::string_view key) const {
  return impl_->metadata.integer(key);
}
std::optional<double> Gguf::number(std::string_view key) const {
  return impl_->metadata.number(key);
}
std::optional<bool> Gguf::boolean(std::string_view key) const {
  return impl_->metadata.boolean(key);
}
std::optional<std::string_view> Gguf::string(std::string_view key) const {
  return impl_->metadata.string(key);
}
std::optional<std::vector<std::int64_t>> Gguf::integers(std::string_view key) const {
  return impl_->metadata.integers(key);
}
std::optional<std::vector<std::uint64_t>> Gguf::unsigned_integers(std::string_view key) const {
  return impl_->metadata.unsigned_integers(key);
}
std::optional<std::vector<double>> Gguf::numbers(std::string_view key) const {
  return impl_->metadata.numbers(key);
}
std::optional<std::vector<std::string_view>> Gguf::strings(std::string_view key) const {
  return impl_->metadata.strings(key);
}

std::int64_t Gguf::require_integer(std::string_view key) const {
  const std::optional<std::int64_t> value = integer(key);
  if (!value) impl_->metadata.fail_missing(key, "an integer");
  return *value;
}
double Gguf::require_number(std::string_view key) const {
  const std::optional<double> value = number(key);
  if (!value) impl_->metadata.fail_missing(key, "a number");
  return *value;
}
std::string_view Gguf::require_string(std::string_view key) const {
  const std::optional<std::string_view> value = string(key);
  if (!value) impl_->metadata.fail_missing(key, "a string");
  return *value;
}

std::string shard_file_name(std::string_view prefix, int index, int count) {
  return fmt::format("{}-{:05}-of-{:05}{}", prefix, index + 1, count, kExtension);
}

std::optional<ShardName> parse_shard_name(std::string_view file_name) {
  // PREFIX-ddddd-of-ddddd.gguf
  constexpr std::size_t kDigits = 5, kTail = 1 + kDigits + 4 + kDigits;
  if (!file_name.ends_with(kExtension)) return std::nullopt;
  file_name.remove_suffix(kExtension.size());
  if (file_name.size() < kTail) return std::nullopt;
  const std::string_view tail = file_name.substr(file_name.size() - kTail);
  if (tail[0] != '-' || tail.substr(1 + kDigits, 4) != "-of-") return std::nullopt;
  const auto number = [&tail](std::size_t start) {
    int value = 0;
    for (const char digit : tail.substr(start, kDigits)) {
      if (digit < '0' || digit > '9') return -1;
      value = 10 * value + (digit - '0');
    }
    return value;
  };
  const int index = number(1), count = number(1 + kDigits + 4);
  if (index < 1 || count < index) return std::nullopt;
  return ShardName{std::string(file_name.substr(0, file_name.size() - kTail)), index - 1, count};
}

void Gguf::release(const std::uint8_t* data, std::size_t bytes) const {
  for (const MappedFile& mapping : impl_->mappings)
    if (mapping.release(data, bytes)) return;
}

}  // namespace tandem
