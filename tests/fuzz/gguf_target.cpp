#include "tests/fuzz/gguf_target.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "placement/check.h"
#include "runtime/gguf.h"

namespace tandem::testing {
namespace {

constexpr std::size_t kMostShards = 8;
constexpr std::size_t kLongestRow = 1 << 16;

// A reader may refuse a value, but not misbehave.
template <typename Reader>
void try_reader(const Gguf& gguf, Reader reader, std::string_view key) {
  try {
    (void)(gguf.*reader)(key);
  } catch (const InputError&) {
    return;
  }
}

void use_metadata(const Gguf& gguf) {
  for (const GgufKeyValue& pair : gguf.metadata()) {
    CHECK(gguf.find(pair.key) == &pair.value);
    try_reader(gguf, &Gguf::integer, pair.key);
    try_reader(gguf, &Gguf::number, pair.key);
    try_reader(gguf, &Gguf::boolean, pair.key);
    try_reader(gguf, &Gguf::string, pair.key);
    try_reader(gguf, &Gguf::integers, pair.key);
    try_reader(gguf, &Gguf::unsigned_integers, pair.key);
    try_reader(gguf, &Gguf::numbers, pair.key);
    try_reader(gguf, &Gguf::strings, pair.key);
  }
}

void use_tensor(const GgufTensor& tensor, std::span<const std::uint8_t> image) {
  CHECK(tensor.offset <= image.size() && tensor.bytes <= image.size() - tensor.offset);
  CHECK(tensor.data == image.data() + tensor.offset);
  if (tensor.bytes == 0) return;
  volatile std::uint8_t sink = tensor.data[0];
  sink = tensor.data[tensor.bytes - 1];
  (void)sink;
  (void)find_bad_values(tensor);
  const auto row = static_cast<std::size_t>(tensor.ne[0]);
  CHECK(row > 0 && tensor.bytes % row_bytes(tensor.type, row) == 0);
  if (dtype_info(tensor.type).kind == DTypeKind::kStorage || row > kLongestRow) return;
  std::vector<float> values(row);
  dequantize_row(tensor.type, tensor.data, row, values.data());
}

void use_set(const Gguf& gguf, std::span<const GgufImage> images) {
  CHECK(gguf.shards().size() == images.size());
  std::size_t count = 0;
  for (const GgufShard& shard : gguf.shards()) count += shard.tensors;
  CHECK(gguf.tensors().size() == count);
  use_metadata(gguf);
  for (const GgufTensor& tensor : gguf.tensors()) {
    CHECK(gguf.find_tensor(tensor.name) == &tensor);
    use_tensor(tensor, images[static_cast<std::size_t>(tensor.shard)].bytes);
  }
}

bool try_name(std::string_view name) {
  const std::optional<ShardName> parsed = parse_shard_name(name);
  if (!parsed) return false;
  CHECK(parsed->index >= 0 && parsed->index < parsed->count);
  CHECK(shard_file_name(parsed->prefix, parsed->index, parsed->count) == name);
  return true;
}

// The images of a "SHRD" input, cut to what is there.
std::vector<std::span<const std::uint8_t>> cut_shards(std::span<const std::uint8_t> input) {
  const std::size_t count = input.empty() ? 1 : std::clamp<std::size_t>(input[0], 1, kMostShards);
  input = input.subspan(std::min<std::size_t>(input.size(), 1));
  std::span<const std::uint8_t> sizes = input.first(std::min(input.size(), 4 * count));
  std::span<const std::uint8_t> rest = input.subspan(sizes.size());
  std::vector<std::span<const std::uint8_t>> images;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t size = 0;
    if (4 * i + 4 <= sizes.size()) std::memcpy(&size, sizes.data() + 4 * i, 4);
    images.push_back(rest.first(std::min<std::size_t>(size, rest.size())));
    rest = rest.subspan(images.back().size());
  }
  return images;
}

}  // namespace

bool try_gguf(std::span<const std::uint8_t> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  if (text.starts_with("NAME")) return try_name(text.substr(4));
  std::vector<std::span<const std::uint8_t>> parts = {input};
  if (text.starts_with("SHRD")) parts = cut_shards(input.subspan(4));
  // Copies of exactly the right size, so that the address sanitizer sees a read past an image.
  std::vector<std::vector<std::uint8_t>> copies;
  for (const auto& part : parts) copies.emplace_back(part.begin(), part.end());
  std::vector<GgufImage> images;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    images.push_back({shard_file_name("m", static_cast<int>(i), static_cast<int>(copies.size())), copies[i]});
  }
  try {
    use_set(Gguf::parse_set(images), images);
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    CHECK(message.find("expected") != message.npos && message.find("found") != message.npos, "{}", message);
    CHECK(message.find(". Fix: ") != message.npos, "{}", message);
    return false;
  }
  return true;
}

}  // namespace tandem::testing
