#include "tests/gguf_builder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "placement/check.h"
#include "runtime/gguf.h"

namespace tandem::testing {
namespace {

void append_string(std::vector<std::uint8_t>& bytes, std::string_view text) {
  append(bytes, static_cast<std::uint64_t>(text.size()));
  bytes.insert(bytes.end(), text.begin(), text.end());
}

std::uint64_t padded(std::uint64_t size, std::uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

std::uint64_t tensor_bytes(const TensorSpec& tensor) {
  if (tensor.bytes) return *tensor.bytes;
  const DTypeInfo* info = find_dtype(tensor.type_id);
  CHECK(info != nullptr, "tensor {} of type {} needs `bytes`", tensor.name, tensor.type_id);
  std::uint64_t elements = 1;
  for (const std::int64_t dim : tensor.ne) {
    CHECK(dim >= 0, "tensor {} needs `bytes`", tensor.name);
    elements *= static_cast<std::uint64_t>(dim);
  }
  return elements / info->block_elems * info->block_bytes;
}

void write_all(int file, const std::uint8_t* bytes, std::size_t size, std::uint64_t offset) {
  while (size > 0) {
    const ssize_t written = ::pwrite(file, bytes, size, static_cast<off_t>(offset));
    CHECK(written > 0);
    bytes += written;
    size -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr, "{}", pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

GgufBuilder& GgufBuilder::put(std::string_view key, std::uint32_t type, std::vector<std::uint8_t> bytes) {
  for (KeyValueSpec& existing : key_values_) {
    if (existing.key == key) {
      existing.type = type;
      existing.bytes = std::move(bytes);
      return *this;
    }
  }
  key_values_.push_back({std::string(key), type, std::move(bytes)});
  return *this;
}

GgufBuilder& GgufBuilder::add(std::string_view key, std::string_view value) {
  std::vector<std::uint8_t> bytes;
  append_string(bytes, value);
  return put(key, value_type_id<std::string>(), std::move(bytes));
}

GgufBuilder& GgufBuilder::add(std::string_view key, const std::vector<std::string>& values) {
  std::vector<std::uint8_t> bytes;
  append(bytes, value_type_id<std::string>());
  append(bytes, static_cast<std::uint64_t>(values.size()));
  for (const std::string& value : values) append_string(bytes, value);
  return put(key, 9, std::move(bytes));
}

GgufBuilder& GgufBuilder::add_raw(std::string_view key, std::uint32_t type, std::vector<std::uint8_t> bytes) {
  return put(key, type, std::move(bytes));
}

GgufBuilder& GgufBuilder::add_duplicate(std::string_view key, std::uint32_t value) {
  std::vector<std::uint8_t> bytes;
  append(bytes, value);
  key_values_.push_back({std::string(key), value_type_id<std::uint32_t>(), std::move(bytes)});
  return *this;
}

GgufBuilder& GgufBuilder::remove(std::string_view key) {
  std::erase_if(key_values_, [&](const KeyValueSpec& spec) { return spec.key == key; });
  return *this;
}

TensorSpec& GgufBuilder::tensor(std::string_view name, DType type, std::vector<std::int64_t> ne,
                                std::vector<std::uint8_t> data) {
  TensorSpec spec;
  spec.name = name;
  spec.type_id = static_cast<std::uint32_t>(type);
  spec.ne = std::move(ne);
  spec.data = std::move(data);
  tensors_.push_back(std::move(spec));
  return tensors_.back();
}

TensorSpec& GgufBuilder::tensor(std::string_view name, const std::vector<float>& values, std::vector<std::int64_t> ne) {
  std::vector<std::uint8_t> data(values.size() * sizeof(float));
  std::memcpy(data.data(), values.data(), data.size());
  if (ne.empty()) ne = {static_cast<std::int64_t>(values.size())};
  return tensor(name, DType::F32, std::move(ne), std::move(data));
}

TensorSpec& GgufBuilder::find(std::string_view name) {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorSpec& spec) { return spec.name == name; });
  CHECK(found != tensors_.end(), "no tensor {}", name);
  return *found;
}

GgufBuilder& GgufBuilder::remove_tensor(std::string_view name) {
  std::erase_if(tensors_, [&](const TensorSpec& spec) { return spec.name == name; });
  return *this;
}

GgufBuilder& GgufBuilder::alignment(std::uint32_t value) {
  add("general.alignment", value);
  return layout_alignment(value);
}

GgufBuilder& GgufBuilder::layout_alignment(std::uint64_t value) {
  alignment_ = value;
  return *this;
}

// Everything but the tensor data, which is placed by (position, tensor).
struct GgufBuilder::Layout {
  std::vector<std::uint8_t> header;
  std::vector<std::uint64_t> positions;  // of each tensor's data in the file
  std::uint64_t data_offset = 0;
  std::uint64_t size = 0;
};

GgufBuilder::Layout GgufBuilder::layout() const {
  Layout result;
  std::vector<std::uint8_t>& header = result.header;
  header.assign(magic.begin(), magic.end());
  append(header, version);
  append(header, tensor_count.value_or(static_cast<std::int64_t>(tensors_.size())));
  append(header, key_value_count.value_or(static_cast<std::int64_t>(key_values_.size())));
  for (const KeyValueSpec& spec : key_values_) {
    append_string(header, spec.key);
    append(header, spec.type);
    header.insert(header.end(), spec.bytes.begin(), spec.bytes.end());
  }
  std::uint64_t offset = 0;
  for (const TensorSpec& spec : tensors_) {
    append_string(header, spec.name);
    append(header, spec.n_dims.value_or(static_cast<std::uint32_t>(spec.ne.size())));
    for (const std::int64_t dim : spec.ne) append(header, dim);
    append(header, spec.type_id);
    append(header, spec.offset.value_or(offset));
    result.positions.push_back(offset);
    offset += padded(tensor_bytes(spec), alignment_);
  }
  result.data_offset = padded(header.size(), alignment_);
  for (std::uint64_t& position : result.positions) position += result.data_offset;
  result.size = result.data_offset + offset;
  return result;
}

std::uint64_t GgufBuilder::data_offset() const {
  return layout().data_offset;
}

std::vector<std::uint8_t> GgufBuilder::build() const {
  const Layout plan = layout();
  CHECK(plan.size < (1ULL << 30), "{} bytes are too many for memory, use write()", plan.size);
  std::vector<std::uint8_t> image = plan.header;
  image.resize(plan.size);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    CHECK(plan.positions[i] + tensors_[i].data.size() <= plan.size);
    std::copy(tensors_[i].data.begin(), tensors_[i].data.end(),
              image.begin() + static_cast<std::ptrdiff_t>(plan.positions[i]));
  }
  return image;
}

std::filesystem::path GgufBuilder::write(const std::filesystem::path& path) const {
  const Layout plan = layout();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  CHECK(file >= 0, "{}", path.string());
  CHECK(::ftruncate(file, static_cast<off_t>(plan.size)) == 0, "{} bytes", plan.size);
  write_all(file, plan.header.data(), plan.header.size(), 0);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    write_all(file, tensors_[i].data.data(), tensors_[i].data.size(), plan.positions[i]);
  }
  CHECK(::close(file) == 0);
  return path;
}

std::vector<GgufBuilder> GgufBuilder::split(const std::vector<std::size_t>& counts) const {
  CHECK(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == tensors_.size());
  std::vector<GgufBuilder> shards(counts.size());
  shards[0].key_values_ = key_values_;
  std::size_t next = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    GgufBuilder& shard = shards[i];
    shard.add("split.no", static_cast<std::uint16_t>(i));
    shard.add("split.count", static_cast<std::uint16_t>(counts.size()));
    shard.add("split.tensors.count", static_cast<std::int32_t>(tensors_.size()));
    for (std::size_t k = 0; k < counts[i]; ++k) shard.tensors_.push_back(tensors_[next++]);
  }
  shards[0].alignment_ = alignment_;
  return shards;
}

std::vector<GgufBuilder> GgufBuilder::split(std::size_t shards) const {
  std::vector<std::size_t> counts(shards, tensors_.size() / shards);
  for (std::size_t i = 0; i < tensors_.size() % shards; ++i) ++counts[i];
  return split(counts);
}

std::vector<std::filesystem::path> GgufBuilder::write_split(const std::filesystem::path& prefix,
                                                            std::size_t shards) const {
  return write_shards(split(shards), prefix);
}

std::vector<std::filesystem::path> write_shards(const std::vector<GgufBuilder>& shards,
                                                const std::filesystem::path& prefix) {
  std::vector<std::filesystem::path> paths;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shard_file_name(prefix.filename().string(), static_cast<int>(i), static_cast<int>(shards.size()));
    paths.push_back(shards[i].write(prefix.parent_path() / name));
  }
  return paths;
}

std::filesystem::path write_file(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  CHECK(file >= 0, "{}", path.string());
  write_all(file, bytes.data(), bytes.size(), 0);
  CHECK(::close(file) == 0);
  return path;
}

std::size_t position_after(std::span<const std::uint8_t> bytes, std::string_view text) {
  const auto found = std::search(bytes.begin(), bytes.end(), text.begin(), text.end());
  CHECK(found != bytes.end(), "{} is not in the file", text);
  return static_cast<std::size_t>(found - bytes.begin()) + text.size();
}

BlockHalves block_halves(DType type) {
  switch (type) {
    case DType::Q4_1:
    case DType::Q5_1:
    case DType::Q4_K:
    case DType::Q5_K:
      return {0, 2};
    case DType::Q2_K:
      return {80, 82};
    case DType::Q3_K:
      return {108, -1};
    case DType::Q6_K:
      return {208, -1};
    case DType::TQ1_0:
      return {52, -1};
    case DType::TQ2_0:
      return {64, -1};
    case DType::IQ1_M:
    case DType::MXFP4:
    case DType::NVFP4:
      return {};
    default:
      return {0, -1};
  }
}

namespace {

// Largest |m * c| of a format, so that a scale can be chosen for it.
double largest_code(DType type) {
  Block32 block;
  double largest = 1;
  const DTypeInfo& info = dtype_info(type);
  for (const int fill : {0x00, 0x55, 0x7F, 0x80, 0xFF}) {
    const std::vector<std::uint8_t> bytes(info.block_bytes, static_cast<std::uint8_t>(fill));
    for (std::size_t b = 0; b < info.block_elems / 32; ++b) {
      decode_block32(type, bytes.data(), b, block);
      for (std::size_t i = 0; i < 32; ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(block.m[i / 16] * block.c[i])));
      }
    }
  }
  return largest;
}

void set_block_scale(DType type, double scale, std::uint32_t noise, std::uint8_t* block) {
  const auto put_half = [&](int position, double value) {
    const std::uint16_t bits = float_to_half(static_cast<float>(value));
    std::memcpy(block + position, &bits, sizeof bits);
  };
  const double factor = 0.5 + (noise & 0xFFU) / 256.0;
  const BlockHalves halves = block_halves(type);
  if (halves.d >= 0) put_half(halves.d, scale * factor);
  if (halves.second >= 0) put_half(halves.second, scale * factor / 2);
  if (type == DType::MXFP4) block[0] = static_cast<std::uint8_t>(122 + (noise & 3U));
  if (type == DType::NVFP4) {
    for (int j = 0; j < 4; ++j) block[j] = static_cast<std::uint8_t>(0x20 + (block[j] & 0x0F));
  }
  if (type == DType::IQ1_M) {
    const std::uint16_t bits = float_to_half(static_cast<float>(scale * factor));
    for (int i = 0; i < 4; ++i) {
      std::uint8_t& high = block[49 + 2 * i];
      high = static_cast<std::uint8_t>((high & 15) | ((bits >> (4 * i)) & 15) << 4);
    }
  }
}

}  // namespace

std::vector<std::uint8_t> random_weights(DType type, std::size_t elements, std::uint32_t seed) {
  const DTypeInfo& info = dtype_info(type);
  CHECK(info.kind != DTypeKind::kStorage, "{}", info.name);
  std::uint32_t state = seed;
  const auto next = [&state] { return (state = state * 1664525 + 1013904223) >> 16; };
  std::vector<std::uint8_t> bytes(row_bytes(type, elements));
  if (info.kind == DTypeKind::kFloat) {
    for (std::size_t i = 0; i < elements; ++i) {
      const float value = (static_cast<float>(next()) - 32768.0F) / 16384.0F;
      const std::uint16_t half = float_to_half(value);
      if (type == DType::F32) std::memcpy(bytes.data() + 4 * i, &value, 4);
      if (type == DType::F16) std::memcpy(bytes.data() + 2 * i, &half, 2);
      if (type == DType::BF16) std::memcpy(bytes.data() + 2 * i, reinterpret_cast<const std::uint8_t*>(&value) + 2, 2);
    }
    return bytes;
  }
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(next());
  const double scale = 2.0 / largest_code(type);
  for (std::size_t k = 0; k < elements / info.block_elems; ++k) {
    set_block_scale(type, scale, next(), bytes.data() + k * info.block_bytes);
  }
  return bytes;
}

}  // namespace tandem::testing
