// Tile layouts of the block types whose codes are plain integers. Every code moves in 32-bit words, one word per row
// and group of four columns, so a row of the file and its lane in the tile differ by where the words lie and by a
// transposition of fields between the words.
#include <cstddef>

#include "runtime/quant_blocks.h"
#include "runtime/tile_internal.h"

namespace tandem::tile_internal {
namespace {

using std::size_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

// Bytes of the planes of one block, and of one [16 rows][4 columns] group in them.
constexpr size_t kP8 = 512, kP4 = 256, kP2 = 128, kP1 = 64, kGroup = 64;
constexpr size_t kHalves = kTileRows * 2;  // bytes of [16 rows] of 16-bit values

constexpr auto kKeep = [](auto&) {};

// Exchanges the bits mask << shift of `a` with the bits mask of `b`.
inline void exchange(uint32_t& a, uint32_t& b, unsigned shift, uint32_t mask) {
  const uint32_t differing = ((a >> shift) ^ b) & mask;
  b ^= differing;
  a ^= differing << shift;
}

// Transpositions in each byte lane of 2, 4 or 8 words: field i of word k changes places with field k of word i. Fields
// are nibbles, pairs of bits or bits, so the file's "one block per field" becomes the planes' "one block per word".
constexpr auto kNibbles = [](uint32_t (&w)[2]) { exchange(w[0], w[1], 4, 0x0F0F0F0FU); };
constexpr auto kPairs = [](uint32_t (&w)[4]) {
  for (size_t i : {0U, 1U}) exchange(w[i], w[i + 2], 4, 0x0F0F0F0FU);
  for (size_t i : {0U, 2U}) exchange(w[i], w[i + 1], 2, 0x33333333U);
};
constexpr auto kBits = [](uint32_t (&w)[8]) {
  for (size_t i : {0U, 1U, 2U, 3U}) exchange(w[i], w[i + 4], 4, 0x0F0F0F0FU);
  for (size_t i : {0U, 1U, 4U, 5U}) exchange(w[i], w[i + 2], 2, 0x33333333U);
  for (size_t i : {0U, 2U, 4U, 6U}) exchange(w[i], w[i + 1], 1, 0x55555555U);
};

// Moves bit p of the word to the place whose number has the binary digits kHigh and kLow of p exchanged.
template <unsigned kHigh, unsigned kLow>
constexpr uint32_t swap_digits(uint32_t word) {
  constexpr unsigned kShift = (1U << kHigh) - (1U << kLow);
  constexpr uint32_t kMask = [] {
    uint32_t mask = 0;
    for (unsigned p = 0; p < 32; ++p) {
      if ((p >> kHigh & 1U) == 0 && (p >> kLow & 1U) == 1) mask |= 1U << p;
    }
    return mask;
  }();
  const uint32_t differing = ((word >> kShift) ^ word) & kMask;
  return word ^ differing ^ (differing << kShift);
}

// Q2_0 packs the columns 4k + j of a word as byte k, field j; P2 wants byte j, field k. The number of a bit is
// (k1 k0 j1 j0 bit) in binary.
constexpr auto kBytesAndFields = [](uint32_t (&w)[1]) { w[0] = swap_digits<3, 1>(swap_digits<4, 2>(w[0])); };

// The fifth bits of Q5_0 and Q5_1: bit 4g + j of the file's word is bit 8j + g in P1. In binary digits, (g2 g1 g0 j1
// j0) becomes (j1 j0 g2 g1 g0): a rotation, in four exchanges.
template <Way W>
constexpr auto kFifthBits = [](uint32_t (&w)[1]) {
  if constexpr (W == Way::kPack) {
    w[0] = swap_digits<1, 0>(swap_digits<2, 1>(swap_digits<3, 0>(swap_digits<4, 1>(w[0]))));
  } else {
    w[0] = swap_digits<4, 1>(swap_digits<3, 0>(swap_digits<2, 1>(swap_digits<1, 0>(w[0]))));
  }
};

// The whole plane of a block, whose words lie one after the other in the file.
template <Way W, size_t kWords>
void move_plane(FileByte<W>* codes, TileByte<W>* plane, size_t r) {
  move_words<W, uint32_t, kWords>(codes, 4, plane + 4 * r, kGroup, kKeep);
}

// Types with a scale for each block of 32: d (f16; u8 e for MXFP4), then m where the type has one. The 16 bytes of
// nibbles hold columns i and 16 + i, which is P4 as it stands.
template <typename Block>
struct SmallBlocks {
  static constexpr bool kIsMx = requires(Block block) { block.e; };
  static constexpr bool kHasMin = requires(Block block) { block.m; };
  static constexpr bool kHasFifthBit = requires(Block block) { block.qh; };
  static constexpr size_t kCodeBytes = kTileRows * sizeof(Block::qs) + (kHasFifthBit ? kP1 : 0);
  static constexpr size_t kScaleBytes = kTileRows * sizeof(Block) - kCodeBytes;

  template <Way W>
  static void row(FileByte<W>* file, size_t blocks, size_t r, TileByte<W>* segment) {
    for (size_t b = 0; b < blocks; ++b) {
      FileByte<W>* block = file + b * sizeof(Block);
      TileByte<W>* codes = segment + blocks * kScaleBytes + b * kCodeBytes;
      if constexpr (kIsMx) {
        move_field<W, uint8_t>(block + offsetof(Block, e), segment + b * kTileRows, r);
      } else {
        move_field<W, uint16_t>(block + offsetof(Block, d), segment + b * kHalves, r);
      }
      if constexpr (kHasMin) {
        move_field<W, uint16_t>(block + offsetof(Block, m), segment + (blocks + b) * kHalves, r);
      }
      move_plane<W, sizeof(Block::qs) / 4>(block + offsetof(Block, qs), codes, r);
      if constexpr (kHasFifthBit) {
        move_words<W, uint32_t, 1>(block + offsetof(Block, qh), 0, codes + kP4 + 4 * r, 0, kFifthBits<W>);
      }
    }
  }
};

// Q2_0: one scale for two blocks.
struct Q20 {
  template <Way W>
  static void row(FileByte<W>* file, size_t blocks, size_t r, TileByte<W>* segment) {
    TileByte<W>* codes = segment + blocks / 2 * kHalves;
    for (size_t pair = 0; pair < blocks / 2; ++pair) {
      FileByte<W>* block = file + pair * sizeof(BlockQ2_0);
      move_field<W, uint16_t>(block + offsetof(BlockQ2_0, d), segment + pair * kHalves, r);
      for (size_t word = 0; word < 4; ++word) {
        TileByte<W>* group = codes + 2 * pair * kP2 + word * kGroup;
        move_words<W, uint32_t, 1>(block + offsetof(BlockQ2_0, qs) + 4 * word, 0, group + 4 * r, 0, kBytesAndFields);
      }
    }
  }
};

// The parts that the types with 256 columns per block share. `codes` is the first byte of the segment's codes,
// kBlock the distance between the codes of two blocks of 32, `plane` where a plane begins in the codes of a block.

// 32 bytes, byte i: low nibble column i of one block, high nibble the same of the block kApart further in the codes.
template <Way W, size_t kApart>
void move_nibbles(FileByte<W>* qs, TileByte<W>* codes, size_t r) {
  for (size_t g = 0; g < 4; ++g) {
    move_words<W, uint32_t, 2>(qs + 4 * g, 16, codes + g * kGroup + 4 * r, kApart, kNibbles);
  }
}
// 64 bytes, byte 32n + i: bits 2s, 2s + 1 belong to column i of block 4n + s.
template <Way W, size_t kBlock>
void move_pairs(FileByte<W>* qs, TileByte<W>* plane, size_t r) {
  for (size_t n = 0; n < 2; ++n) {
    for (size_t h = 0; h < 2; ++h) {
      TileByte<W>* group = plane + 4 * n * kBlock + h * kGroup;
      move_words<W, uint32_t, 4>(qs + 32 * n + 16 * h, 4, group + 4 * r, kBlock, kPairs);
    }
  }
}
// 32 bytes, byte i: bit p belongs to column i of block p.
template <Way W, size_t kBlock>
void move_bits(FileByte<W>* bits, TileByte<W>* plane, size_t r) {
  move_words<W, uint32_t, 8>(bits, 4, plane + 4 * r, kBlock, kBits);
}

struct Q2K {
  template <Way W>
  static void row(FileByte<W>* block, size_t, size_t r, TileByte<W>* segment) {
    move_field<W, uint16_t>(block + offsetof(BlockQ2_K, d), segment, r);
    move_field<W, uint16_t>(block + offsetof(BlockQ2_K, dmin), segment + kHalves, r);
    move_field<W, uint8_t, 16>(block + offsetof(BlockQ2_K, scales), segment + 2 * kHalves, r);
    move_pairs<W, kP2>(block + offsetof(BlockQ2_K, qs), segment + 2 * kHalves + 16 * kTileRows, r);
  }
};

struct Q3K {
  template <Way W>
  static void row(FileByte<W>* block, size_t, size_t r, TileByte<W>* segment) {
    TileByte<W>* codes = segment + kHalves + 12 * kTileRows;
    move_field<W, uint16_t>(block + offsetof(BlockQ3_K, d), segment, r);
    move_field<W, uint8_t, 12>(block + offsetof(BlockQ3_K, scales), segment + kHalves, r);
    move_pairs<W, kP2 + kP1>(block + offsetof(BlockQ3_K, qs), codes, r);
    move_bits<W, kP2 + kP1>(block + offsetof(BlockQ3_K, hmask), codes + kP2, r);
  }
};

// Q4_K and Q5_K.
template <typename Block>
struct Q45K {
  template <Way W>
  static void row(FileByte<W>* block, size_t, size_t r, TileByte<W>* segment) {
    constexpr bool kHasFifthBit = requires(Block b) {
      b.qh;
    };
    constexpr size_t kBlock = kP4 + (kHasFifthBit ? kP1 : 0);
    TileByte<W>* codes = segment + 2 * kHalves + 12 * kTileRows;
    move_field<W, uint16_t>(block + offsetof(Block, d), segment, r);
    move_field<W, uint16_t>(block + offsetof(Block, dmin), segment + kHalves, r);
    move_field<W, uint8_t, 12>(block + offsetof(Block, scales), segment + 2 * kHalves, r);
    for (size_t q = 0; q < 4; ++q) {
      move_nibbles<W, kBlock>(block + offsetof(Block, qs) + 32 * q, codes + 2 * q * kBlock, r);
    }
    if constexpr (kHasFifthBit) move_bits<W, kBlock>(block + offsetof(Block, qh), codes + kP4, r);
  }
};

struct Q6K {
  template <Way W>
  static void row(FileByte<W>* block, size_t, size_t r, TileByte<W>* segment) {
    constexpr size_t kBlock = kP4 + kP2;
    TileByte<W>* codes = segment + kHalves + 16 * kTileRows;
    move_field<W, uint16_t>(block + offsetof(BlockQ6_K, d), segment, r);
    move_field<W, uint8_t, 16>(block + offsetof(BlockQ6_K, scales), segment + kHalves, r);
    // ql byte 64n + 32u + i: low nibble column i of block 4n + u, high nibble the same of block 4n + u + 2.
    for (size_t n = 0; n < 2; ++n) {
      for (size_t u = 0; u < 2; ++u) {
        FileByte<W>* ql = block + offsetof(BlockQ6_K, ql) + 64 * n + 32 * u;
        move_nibbles<W, 2 * kBlock>(ql, codes + (4 * n + u) * kBlock, r);
      }
    }
    move_pairs<W, kBlock>(block + offsetof(BlockQ6_K, qh), codes + kP4, r);
  }
};

struct IQ4XS {
  template <Way W>
  static void row(FileByte<W>* block, size_t, size_t r, TileByte<W>* segment) {
    TileByte<W>* codes = segment + 2 * kHalves + 4 * kTileRows;
    move_field<W, uint16_t>(block + offsetof(BlockIQ4_XS, d), segment, r);
    move_field<W, uint16_t>(block + offsetof(BlockIQ4_XS, scales_h), segment + kHalves, r);
    move_field<W, uint8_t, 4>(block + offsetof(BlockIQ4_XS, scales_l), segment + 2 * kHalves, r);
    for (size_t b = 0; b < kSegmentBlocks; ++b) {
      move_plane<W, 4>(block + offsetof(BlockIQ4_XS, qs) + 16 * b, codes + b * kP4, r);
    }
  }
};

static_assert(SmallBlocks<BlockQ8_0>::kCodeBytes == kP8);

}  // namespace

const TileFormat* arithmetic_tile_format(DType type) {
  switch (type) {
    case DType::Q4_0:
      return &kTileFormatOf<SmallBlocks<BlockQ4_0>>;
    case DType::Q4_1:
      return &kTileFormatOf<SmallBlocks<BlockQ4_1>>;
    case DType::Q5_0:
      return &kTileFormatOf<SmallBlocks<BlockQ5_0>>;
    case DType::Q5_1:
      return &kTileFormatOf<SmallBlocks<BlockQ5_1>>;
    case DType::Q8_0:
      return &kTileFormatOf<SmallBlocks<BlockQ8_0>>;
    case DType::IQ4_NL:
      return &kTileFormatOf<SmallBlocks<BlockIQ4_NL>>;
    case DType::MXFP4:
      return &kTileFormatOf<SmallBlocks<BlockMXFP4>>;
    case DType::Q2_0:
      return &kTileFormatOf<Q20>;
    case DType::Q2_K:
      return &kTileFormatOf<Q2K>;
    case DType::Q3_K:
      return &kTileFormatOf<Q3K>;
    case DType::Q4_K:
      return &kTileFormatOf<Q45K<BlockQ4_K>>;
    case DType::Q5_K:
      return &kTileFormatOf<Q45K<BlockQ5_K>>;
    case DType::Q6_K:
      return &kTileFormatOf<Q6K>;
    case DType::IQ4_XS:
      return &kTileFormatOf<IQ4XS>;
    default:
      return nullptr;
  }
}

}  // namespace tandem::tile_internal
