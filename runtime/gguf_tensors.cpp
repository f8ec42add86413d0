// Tensor infos and the layout of the data section.
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "runtime/gguf_directory.h"

namespace tandem {
namespace {

constexpr std::uint64_t kLongestName = 63;
constexpr std::uint32_t kMostDims = 4;

// PrismML's files use type id 42 for blocks of 128 values in 34 bytes; the public Q2_0 has 64 values in 18 bytes. The
// directory cannot tell them apart, the distance to the next tensor (or to the end of the file) can, unless the padding
// makes both distances the same, as for a tensor of a few blocks.
constexpr std::int64_t kPrismElems = 128;
constexpr std::uint64_t kPrismBytes = 34;

struct RetiredType {
  std::uint32_t id;
  std::string_view name, why;
};
constexpr std::string_view kRemoved = "removed from the format";
constexpr std::string_view kActivation = "a format of activations, never stored in files";
constexpr RetiredType kRetired[] = {
    {4, "Q4_2", kRemoved},        {5, "Q4_3", kRemoved},        {9, "Q8_1", kActivation},
    {15, "Q8_K", kActivation},    {31, "Q4_0_4_4", kRemoved},   {32, "Q4_0_4_8", kRemoved},
    {33, "Q4_0_8_8", kRemoved},   {36, "IQ4_NL_4_4", kRemoved}, {37, "IQ4_NL_4_8", kRemoved},
    {38, "IQ4_NL_8_8", kRemoved},
};

[[noreturn]] void fail_type(std::uint32_t id, const std::string& what) {
  for (const RetiredType& retired : kRetired) {
    if (retired.id == id) {
      fail_input(
          "{}: expected a known tensor type, found type id {} ({}, {}). Fix: convert the model again with a current "
          "converter",
          what, id, retired.name, retired.why);
    }
  }
  fail_input(
      "{}: expected a known tensor type (ids 0 to 42), found unknown type id {} (private type of another program?). "
      "Fix: use a file of this model with public types, or the program that made it",
      what, static_cast<std::int32_t>(id));
}

// The shape in a message.
std::string shape_text(const GgufTensor& tensor) {
  const auto dims = static_cast<std::size_t>(tensor.n_dims);
  return fmt::format("[{}]", fmt::join(tensor.ne.begin(), tensor.ne.begin() + dims, ", "));
}

// `field` names the tensor for the reader, which adds the file; `what` is both.
void read_dimensions(ByteReader& reader, GgufTensor& tensor, const std::string& field, const std::string& what) {
  const auto dims = reader.read<std::uint32_t>(field + ": dimensions");
  if (dims > kMostDims) {
    fail_input("{}: expected at most {} dimensions, found {}. Fix: {}", what, kMostDims, dims, kFixDamaged);
  }
  tensor.n_dims = static_cast<int>(dims);
  for (std::size_t d = 0; d < dims; ++d) {
    tensor.ne[d] = reader.read<std::int64_t>(field + ": dimensions");
    if (tensor.ne[d] < 0) {
      fail_input("{}: dimension {}: expected 0 or more, found {}. Fix: {}", what, d, tensor.ne[d], kFixDamaged);
    }
  }
}

std::uint64_t checked_bytes(const GgufTensor& tensor, const std::string& what) {
  const DTypeInfo& info = dtype_info(tensor.type);
  std::int64_t elements = 1;
  bool overflow = false;
  for (const std::int64_t dim : tensor.ne) overflow |= __builtin_mul_overflow(elements, dim, &elements);
  if (overflow) {
    fail_input("{}: shape {}: expected fewer than 2^63 elements, found more. Fix: {}", what, shape_text(tensor),
               kFixDamaged);
  }
  if (tensor.ne[0] % info.block_elems != 0) {
    fail_input("{}: row length: expected a multiple of {} for type {}, found {}. Fix: convert the model again", what,
               info.block_elems, info.name, tensor.ne[0]);
  }
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(elements) / info.block_elems, std::uint64_t{info.block_bytes},
                             &bytes)) {
    fail_input("{}: size of {} x {}: expected fewer than 2^64 bytes, found more. Fix: {}", what, shape_text(tensor),
               info.name, kFixDamaged);
  }
  return bytes;
}

// Running end of the data section under the public layout, and under PrismML's reading of type 42.
struct RunningEnd {
  std::uint64_t end = 0;        // padded
  std::uint64_t prism_end = 0;  // padded; meaningful once prism_tensor is set
  const GgufTensor* prism_tensor = nullptr;
};

std::uint64_t prism_bytes(const GgufTensor& tensor) {
  if (tensor.type != DType::Q2_0 || tensor.ne[0] % kPrismElems != 0) return tensor.bytes;
  const DTypeInfo& info = dtype_info(DType::Q2_0);
  return tensor.bytes / info.block_bytes * info.block_elems / std::uint64_t{kPrismElems} * kPrismBytes;
}

[[noreturn]] void fail_prism(const GgufTensor& tensor, const std::string& file) {
  fail_input(
      "{}: tensor {}: expected Q2_0 blocks of 64 values in 18 bytes, found PrismML's layout of 128 values in 34 bytes "
      "under the same type id 42. Fix: use a file of this model with the public Q2_0 or another type",
      file, quote(tensor.name));
}

void advance(RunningEnd& running, const GgufTensor& tensor, std::uint64_t alignment, const std::string& file) {
  std::uint64_t end = 0;
  if (__builtin_add_overflow(running.end, tensor.bytes, &end) || __builtin_add_overflow(end, alignment - 1, &end)) {
    fail_input("{}: tensor {}: end of data: expected a position below 2^64, found an overflow. Fix: {}", file,
               quote(tensor.name), kFixDamaged);
  }
  running.end = end & ~(alignment - 1);
  running.prism_end = (running.prism_end + prism_bytes(tensor) + alignment - 1) & ~(alignment - 1);
  if (prism_bytes(tensor) != tensor.bytes) running.prism_tensor = &tensor;
}

}  // namespace

std::vector<GgufTensor> read_tensor_infos(ByteReader& reader, std::size_t count, const std::string& file) {
  std::vector<GgufTensor> tensors;
  tensors.reserve(count);
  std::unordered_set<std::string_view> names;
  names.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string number = fmt::format("tensor {} of {}", i + 1, count);
    const auto length = reader.read<std::uint64_t>(number + ": name length");
    if (length > kLongestName) {
      fail_input("{}: {}: expected a name of at most {} bytes, found {}. Fix: {}", file, number, kLongestName, length,
                 kFixDamaged);
    }
    const std::string_view name = reader.read_text(length, number + ": name");
    const std::string field = "tensor " + quote(name);
    const std::string what = file + ": " + field;
    if (!names.insert(name).second) {
      fail_input("{}: expected every name once, found it again as {}. Fix: convert the model again", what, number);
    }
    GgufTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    read_dimensions(reader, tensor, field, what);
    const auto type = reader.read<std::uint32_t>(field + ": type");
    const DTypeInfo* info = find_dtype(type);
    if (info == nullptr) fail_type(type, what);
    tensor.type = info->type;
    tensor.bytes = checked_bytes(tensor, what);
    tensor.offset = reader.read<std::uint64_t>(field + ": offset");
  }
  return tensors;
}

std::uint64_t place_tensors(std::vector<GgufTensor>& tensors, std::span<const std::uint8_t> image,
                            std::uint64_t header_bytes, std::uint64_t alignment, const std::string& file) {
  const std::uint64_t size = image.size();
  const std::uint64_t start = (header_bytes + alignment - 1) & ~(alignment - 1);
  RunningEnd running;
  std::string_view previous = "the start of the data";
  std::string after;
  for (const GgufTensor& tensor : tensors) {
    if (tensor.offset != running.end) {
      if (running.prism_tensor != nullptr && tensor.offset == running.prism_end) {
        fail_prism(*running.prism_tensor, file);
      }
      fail_input("{}: tensor {}: offset: expected {} ({}, alignment {}), found {}. Fix: {}", file, quote(tensor.name),
                 running.end, previous, alignment, tensor.offset, kFixDamaged);
    }
    advance(running, tensor, alignment, file);
    after = "right after " + quote(tensor.name);
    previous = after;
  }
  // An empty data section needs no padding in front of it: a file may end with its header.
  for (GgufTensor& tensor : tensors) {
    if (tensor.bytes > 0 &&
        (start > size || tensor.offset > size - start || tensor.bytes > size - start - tensor.offset)) {
      if (running.prism_tensor != nullptr && start <= size && running.prism_end >= size - start &&
          running.prism_end - (size - start) < alignment) {
        fail_prism(*running.prism_tensor, file);
      }
      fail_input("{}: tensor {}: data: expected {} bytes at byte {} of the file, found a file of {} bytes. Fix: {}",
                 file, quote(tensor.name), tensor.bytes, start + tensor.offset, size, kFixDamaged);
    }
    tensor.offset = std::min(start + tensor.offset, size);
    tensor.data = image.data() + tensor.offset;
  }
  return std::min(start, size);
}

}  // namespace tandem
