#include "tests/runtime/tile_reader.h"

#include <algorithm>
#include <random>

namespace tandem::testing {
namespace {

constexpr std::int8_t kNonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::int8_t kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Bytes per row: of the scales of a segment of nb blocks, and of the codes of one block.
std::size_t scale_bytes(DType type, std::size_t nb) {
  switch (type) {
    case DType::Q4_0:
    case DType::Q5_0:
    case DType::Q8_0:
    case DType::IQ4_NL:
      return 2 * nb;
    case DType::Q4_1:
    case DType::Q5_1:
      return 4 * nb;
    case DType::MXFP4:
      return nb;
    case DType::Q2_0:
      return nb;  // 2 bytes for two blocks
    case DType::Q2_K:
      return 2 + 2 + 16;
    case DType::Q3_K:
      return 2 + 12;
    case DType::Q4_K:
    case DType::Q5_K:
      return 2 + 2 + 12;
    case DType::Q6_K:
      return 2 + 16;
    case DType::IQ4_XS:
      return 2 + 2 + 4;
    default:
      return 0;
  }
}
std::size_t code_bytes(DType type) {
  switch (type) {
    case DType::Q8_0:
      return 32;
    case DType::Q5_0:
    case DType::Q5_1:
    case DType::Q5_K:
      return 16 + 4;
    case DType::Q6_K:
      return 16 + 8;
    case DType::Q2_0:
    case DType::Q2_K:
      return 8;
    case DType::Q3_K:
      return 8 + 4;
    default:
      return 16;
  }
}

// One block of one row, with the places of its scales and codes.
struct Place {
  const std::uint8_t* segment;
  const std::uint8_t* codes;  // of this block
  std::size_t nb, p, r;       // blocks of the segment, this block's number in it, row

  // Field `index` of an [..][16 rows] array that begins `offset` bytes (per row) into the scales.
  std::uint8_t byte(std::size_t offset, std::size_t index = 0) const { return segment[16 * (offset + index) + r]; }
  std::uint16_t word(std::size_t offset, std::size_t index = 0) const {
    const std::uint8_t* at = segment + 16 * offset + 2 * (16 * index + r);
    return static_cast<std::uint16_t>(at[0] | at[1] << 8);
  }
  float half(std::size_t offset, std::size_t index = 0) const { return half_to_float(word(offset, index)); }

  // Code of column c in the plane that begins `offset` bytes (per row) into the codes of the block.
  int p8(std::size_t offset, std::size_t c) const { return codes[16 * offset + (c / 4) * 64 + 4 * r + c % 4]; }
  int p4(std::size_t offset, std::size_t c) const {
    const int byte = codes[16 * offset + (c % 16 / 4) * 64 + 4 * r + c % 4];
    return c < 16 ? byte & 15 : byte >> 4;
  }
  int p2(std::size_t offset, std::size_t c) const {
    const int byte = codes[16 * offset + (c / 16) * 64 + 4 * r + c % 4];
    return (byte >> (2 * (c % 16 / 4))) & 3;
  }
  int p1(std::size_t offset, std::size_t c) const { return (codes[16 * offset + 4 * r + c % 4] >> (c / 4)) & 1; }
};

// The integer that stands for column c.
int code_of(DType type, const Place& at, std::size_t c) {
  switch (type) {
    case DType::Q4_0:
      return at.p4(0, c) - 8;
    case DType::Q5_0:
      return (at.p4(0, c) | at.p1(16, c) << 4) - 16;
    case DType::Q5_1:
    case DType::Q5_K:
      return at.p4(0, c) | at.p1(16, c) << 4;
    case DType::Q6_K:
      return (at.p4(0, c) | at.p2(16, c) << 4) - 32;
    case DType::Q8_0:
      return static_cast<std::int8_t>(at.p8(0, c));
    case DType::Q2_0:
      return at.p2(0, c) - 1;
    case DType::Q2_K:
      return at.p2(0, c);
    case DType::Q3_K:
      return at.p2(0, c) - (at.p1(8, c) != 0 ? 0 : 4);
    case DType::IQ4_NL:
    case DType::IQ4_XS:
      return kNonlinear[at.p4(0, c)];
    case DType::MXFP4:
      return kFp4[at.p4(0, c)];
    default:
      return at.p4(0, c);
  }
}

void read_small_scales(DType type, const Place& at, Block32& out) {
  if (type == DType::MXFP4) {
    out.d[0] = __builtin_ldexpf(1.0F, at.byte(0, at.p) - 128);
  } else if (type == DType::Q2_0) {
    out.d[0] = at.half(0, at.p / 2);
  } else {
    out.d[0] = at.half(0, at.p);
  }
  if (type == DType::Q4_1 || type == DType::Q5_1) {
    out.e = at.half(2 * at.nb, at.p);
    out.n[0] = out.n[1] = 1;
    out.has_offset = true;
  }
}

void read_super_scales(DType type, const Place& at, Block32& out) {
  const std::size_t p = at.p;
  out.d[0] = at.half(0);
  if (type == DType::Q2_K) {
    for (std::size_t h = 0; h < 2; ++h) {
      out.m[h] = at.byte(4, 2 * p + h) & 15;
      out.n[h] = at.byte(4, 2 * p + h) >> 4;
    }
  } else if (type == DType::Q3_K) {
    for (std::size_t h = 0; h < 2; ++h) {
      const std::size_t k = 2 * p + h;
      const int low = k < 8 ? at.byte(2, k) & 15 : at.byte(2, k - 8) >> 4;
      out.m[h] = (low | ((at.byte(2, 8 + k % 4) >> (2 * (k / 4))) & 3) << 4) - 32;
    }
  } else if (type == DType::Q6_K) {
    for (std::size_t h = 0; h < 2; ++h) out.m[h] = static_cast<std::int8_t>(at.byte(2, 2 * p + h));
  } else if (type == DType::IQ4_XS) {
    const int low = (at.byte(4, p / 2) >> (4 * (p % 2))) & 15;
    out.m[0] = out.m[1] = (low | ((at.word(2) >> (2 * p)) & 3) << 4) - 32;
  } else if (p < 4) {  // Q4_K, Q5_K
    out.m[0] = out.m[1] = at.byte(4, p) & 63;
    out.n[0] = out.n[1] = at.byte(4, p + 4) & 63;
  } else {
    out.m[0] = out.m[1] = (at.byte(4, p + 4) & 15) | (at.byte(4, p - 4) >> 6) << 4;
    out.n[0] = out.n[1] = (at.byte(4, p + 4) >> 4) | (at.byte(4, p) >> 6) << 4;
  }
  if (type == DType::Q2_K || type == DType::Q4_K || type == DType::Q5_K) {
    out.e = -at.half(2);
    out.has_offset = true;
  }
}

}  // namespace

std::size_t segment_bytes_by_text(DType type, std::size_t nb) {
  return 16 * (scale_bytes(type, nb) + nb * code_bytes(type));
}

Block32 read_tile_block(DType type, const std::uint8_t* tile, std::size_t cols, std::size_t r, std::size_t b) {
  const std::size_t nb = std::min<std::size_t>(8, cols / 32 - b / 8 * 8);
  const std::uint8_t* segment = tile + b / 8 * segment_bytes_by_text(type, 8);
  const std::size_t codes = scale_bytes(type, nb) + b % 8 * code_bytes(type);
  const Place at{segment, segment + 16 * codes, nb, b % 8, r};
  Block32 out{};
  out.m[0] = out.m[1] = 1;
  if (dtype_info(type).block_elems == 256) {
    read_super_scales(type, at, out);
  } else {
    read_small_scales(type, at, out);
  }
  out.d[1] = out.d[0];
  for (std::size_t c = 0; c < 32; ++c) out.c[c] = static_cast<std::int8_t>(code_of(type, at, c));
  return out;
}

std::vector<std::uint8_t> random_bytes(std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> out(bytes);
  for (std::uint8_t& byte : out) byte = static_cast<std::uint8_t>(random() >> 56);
  return out;
}

}  // namespace tandem::testing
