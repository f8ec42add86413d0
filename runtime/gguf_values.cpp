// find_bad_values: the optional validation of tensor data.
#include <cmath>

#include "placement/check.h"
#include "runtime/gguf.h"
#include "runtime/gguf_metadata.h"
#include "runtime/quant_blocks.h"

namespace tandem {
namespace {

bool finite_half(const Bytes2& bytes) {
  return (bytes[1] & 0x7C) != 0x7C;
}

template <typename Block>
bool scales_are_finite(const Block& block) {
  bool finite = true;
  if constexpr (requires { block.dmin; }) finite &= finite_half(block.dmin);
  if constexpr (requires { block.m; }) finite &= finite_half(block.m);
  return finite && finite_half(block.d);
}
bool scales_are_finite(const BlockMXFP4& block) {
  return block.e != 0xFF;
}
bool scales_are_finite(const BlockNVFP4&) {
  return true;
}  // every byte is a number
bool scales_are_finite(const BlockIQ1_M& block) {
  // The half's exponent is bits 10..14: the top of the third nibble and the low three bits of the fourth.
  const int third = block.scales[2][1] >> 4, fourth = block.scales[3][1] >> 4;
  return (third & 0b1100) != 0b1100 || (fourth & 0b0111) != 0b0111;
}

template <typename Value>
Value value_at(const GgufTensor& tensor, std::uint64_t index) {
  Value value;
  __builtin_memcpy(&value, tensor.data + index * sizeof value, sizeof value);
  return value;
}

std::string describe_place(const GgufTensor& tensor, std::string_view what, std::uint64_t index,
                           std::string_view expected, std::string_view found) {
  return fmt::format("tensor {} ({}): {} {}: expected {}, found {}", quote(tensor.name), dtype_name(tensor.type), what,
                     index, expected, found);
}

template <typename ToDouble>
std::optional<std::string> bad_float(const GgufTensor& tensor, std::uint64_t count, ToDouble value_of) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const double value = value_of(i);
    if (!std::isfinite(value)) return describe_place(tensor, "value", i, "a finite number", fmt::format("{}", value));
  }
  return std::nullopt;
}

std::optional<std::string> bad_block(const GgufTensor& tensor) {
  return visit_block_type(tensor.type, [&tensor]<DType T>() -> std::optional<std::string> {
    using Block = typename BlockFormat<T>::Block;
    const auto* blocks = reinterpret_cast<const Block*>(tensor.data);
    for (std::uint64_t b = 0; b < tensor.bytes / sizeof(Block); ++b) {
      if (scales_are_finite(blocks[b])) continue;
      return describe_place(tensor, "block", b, "a finite scale",
                            T == DType::MXFP4 ? "exponent 0xFF" : "infinity or not a number");
    }
    return std::nullopt;
  });
}

}  // namespace

std::optional<std::string> find_bad_values(const GgufTensor& tensor) {
  const DTypeInfo& info = dtype_info(tensor.type);
  if (info.kind == DTypeKind::kBlock) return bad_block(tensor);
  const std::uint64_t count = tensor.bytes / info.block_bytes;
  switch (tensor.type) {
    case DType::F32:
      return bad_float(tensor, count, [&](std::uint64_t i) { return double{value_at<float>(tensor, i)}; });
    case DType::F64:
      return bad_float(tensor, count, [&](std::uint64_t i) { return value_at<double>(tensor, i); });
    case DType::F16:
      return bad_float(tensor, count,
                       [&](std::uint64_t i) { return double{half_to_float(value_at<std::uint16_t>(tensor, i))}; });
    case DType::BF16:
      return bad_float(tensor, count,
                       [&](std::uint64_t i) { return double{bf16_to_float(value_at<std::uint16_t>(tensor, i))}; });
    default:
      return std::nullopt;  // integers
  }
}

}  // namespace tandem
