// Tile layouts of the lattice types (docs/formats.md, "Tiles"). Every field is [..][16 rows]; a row's part of a field
// is one word. A row of a block of 32 columns has four octets of columns, each with its signs; the types of two and of
// three bits per weight differ in what a lattice point covers (an octet or half of it).
#include <cstddef>

#include "placement/check.h"
#include "runtime/quant_blocks.h"
#include "runtime/tile_internal.h"

namespace tandem::tile_internal {

namespace {

constexpr std::size_t kHalfField = 2 * kTileRows;  // bytes of a field with one half per row
constexpr std::size_t kQuadField = 4 * kTileRows;  // bytes of a field with four bytes per row

// Swaps the bits of x that `mask` selects with those `shift` places higher.
constexpr std::uint32_t swap_bits(std::uint32_t x, std::uint32_t mask, unsigned shift) {
  const std::uint32_t differ = ((x >> shift) ^ x) & mask;
  return x ^ differ ^ (differ << shift);
}

// The signs of a row of a block: byte o, bit i of the file's order is column 8 o + i. The tile has them as a P1 plane
// (runtime/tile.h): byte j, bit g is column 4 g + j. Each swap exchanges two digits of the binary column number.
constexpr std::uint32_t plane_of_signs(std::uint32_t signs) {
  signs = swap_bits(signs, 0x0000CCCCU, 14);
  signs = swap_bits(signs, 0x00AA00AAU, 7);
  signs = swap_bits(signs, 0x0C0C0C0CU, 2);
  return swap_bits(signs, 0x22222222U, 1);
}
constexpr std::uint32_t signs_of_plane(std::uint32_t plane) {
  plane = swap_bits(plane, 0x22222222U, 1);
  plane = swap_bits(plane, 0x0C0C0C0CU, 2);
  plane = swap_bits(plane, 0x00AA00AAU, 7);
  return swap_bits(plane, 0x0000CCCCU, 14);
}

template <Way W>
void move_signs(FileByte<W>* file, TileByte<W>* field, std::size_t r) {
  move_words<W, std::uint32_t, 1>(file, 0, field + 4 * r, 0, [](std::uint32_t(&word)[1]) {
    word[0] = W == Way::kPack ? plane_of_signs(word[0]) : signs_of_plane(word[0]);
  });
}

// The same for four 7-bit signs and, on top of the file's word, a 4-bit scale: bit o of the scale takes the place of
// the eighth sign of octet o, which is implied.
template <Way W>
void move_signs_and_scale(FileByte<W>* file, TileByte<W>* field, std::size_t r) {
  move_words<W, std::uint32_t, 1>(file, 0, field + 4 * r, 0, [](std::uint32_t(&word)[1]) {
    std::uint32_t out = 0;
    if constexpr (W == Way::kPack) {
      for (unsigned o = 0; o < 4; ++o)
        out |= (((word[0] >> (7 * o)) & 127U) | ((word[0] >> (28 + o)) & 1U) << 7) << (8 * o);
      out = plane_of_signs(out);
    } else {
      const std::uint32_t signs = signs_of_plane(word[0]);
      for (unsigned o = 0; o < 4; ++o)
        out |= ((signs >> (8 * o)) & 127U) << (7 * o) | ((signs >> (8 * o + 7)) & 1U) << (28 + o);
    }
    word[0] = out;
  });
}

// Four words of the file's IQ2_XS, index | signs << 9, against four low index bytes and, a field further, the signs
// with bit 8 of the index in place of the eighth, implied sign.
template <Way W>
void regroup_iq2_xs(std::uint32_t (&words)[2]) {
  std::uint32_t out[2] = {0, 0};
  if constexpr (W == Way::kPack) {
    for (unsigned o = 0; o < 4; ++o) {
      const std::uint32_t word = words[o / 2] >> (16 * (o % 2));
      out[0] |= (word & 255U) << (8 * o);
      out[1] |= (((word >> 9) & 127U) | ((word >> 8) & 1U) << 7) << (8 * o);
    }
    out[1] = plane_of_signs(out[1]);
  } else {
    const std::uint32_t signs = signs_of_plane(words[1]);
    for (unsigned o = 0; o < 4; ++o) {
      const std::uint32_t low = (words[0] >> (8 * o)) & 255U, byte = (signs >> (8 * o)) & 255U;
      out[o / 2] |= (low | (byte >> 7) << 8 | (byte & 127U) << 9) << (16 * (o % 2));
    }
  }
  words[0] = out[0];
  words[1] = out[1];
}

// Layout::row: see kTileFormatOf. The blocks of these types have 256 columns, so a segment is one block per row.

struct Iq2XxsLayout {
  static constexpr DType kType = DType::IQ2_XXS;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ2_XXS;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      FileByte<W>* const group = row + offsetof(Block, groups) + 8 * p;
      TileByte<W>* const block = segment + kHalfField + 2 * kQuadField * p;
      move_field<W, std::uint32_t>(group, block, r);
      move_signs_and_scale<W>(group + 4, block + kQuadField, r);
    }
  }
};

struct Iq2XsLayout {
  static constexpr DType kType = DType::IQ2_XS;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ2_XS;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    move_field<W, std::uint8_t, 8>(row + offsetof(Block, scales), segment + kHalfField, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + kHalfField + 8 * kTileRows + 2 * kQuadField * p;
      move_words<W, std::uint32_t, 2>(row + offsetof(Block, qs) + 8 * p, 4, block + 4 * r, kQuadField,
                                      regroup_iq2_xs<W>);
    }
  }
};

struct Iq2SLayout {
  static constexpr DType kType = DType::IQ2_S;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ2_S;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    move_field<W, std::uint8_t, 8>(row + offsetof(Block, scales), segment + kHalfField, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + kHalfField + 8 * kTileRows + (2 * kQuadField + kTileRows) * p;
      move_field<W, std::uint32_t>(row + offsetof(Block, qs) + 4 * p, block, r);
      move_signs<W>(row + offsetof(Block, signs) + 4 * p, block + kQuadField, r);
      move_field<W, std::uint8_t>(row + offsetof(Block, qh) + p, block + 2 * kQuadField, r);
    }
  }
};

struct Iq3XxsLayout {
  static constexpr DType kType = DType::IQ3_XXS;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ3_XXS;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + kHalfField + 3 * kQuadField * p;
      move_field<W, std::uint32_t, 2>(row + offsetof(Block, qs) + 8 * p, block, r);
      move_signs_and_scale<W>(row + offsetof(Block, words) + 4 * p, block + 2 * kQuadField, r);
    }
  }
};

struct Iq3SLayout {
  static constexpr DType kType = DType::IQ3_S;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ3_S;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    move_field<W, std::uint8_t, 4>(row + offsetof(Block, scales), segment + kHalfField, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + kHalfField + 4 * kTileRows + (3 * kQuadField + kTileRows) * p;
      move_field<W, std::uint32_t, 2>(row + offsetof(Block, qs) + 8 * p, block, r);
      move_signs<W>(row + offsetof(Block, signs) + 4 * p, block + 2 * kQuadField, r);
      move_field<W, std::uint8_t>(row + offsetof(Block, qh) + p, block + 3 * kQuadField, r);
    }
  }
};

struct Iq1SLayout {
  static constexpr DType kType = DType::IQ1_S;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ1_S;
    move_field<W, std::uint16_t>(row + offsetof(Block, d), segment, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + kHalfField + (kQuadField + kHalfField) * p;
      move_field<W, std::uint32_t>(row + offsetof(Block, qs) + 4 * p, block, r);
      move_field<W, std::uint16_t>(row + offsetof(Block, qh) + 2 * p, block + kQuadField, r);
    }
  }
};

struct Iq1MLayout {
  static constexpr DType kType = DType::IQ1_M;
  template <Way W>
  static void row(FileByte<W>* row, std::size_t, std::size_t r, TileByte<W>* segment) {
    using Block = BlockIQ1_M;
    move_field<W, std::uint16_t, 4>(row + offsetof(Block, scales), segment, r);
    for (std::size_t p = 0; p < kSegmentBlocks; ++p) {
      TileByte<W>* const block = segment + 4 * kHalfField + (kQuadField + kHalfField) * p;
      move_field<W, std::uint32_t>(row + offsetof(Block, qs) + 4 * p, block, r);
      move_field<W, std::uint16_t>(row + offsetof(Block, qh) + 2 * p, block + kQuadField, r);
    }
  }
};

// The row function of a layout with the promise of its type checked: whole blocks of 256 columns.
template <typename Layout>
struct WholeBlocks {
  template <Way W>
  static void row(FileByte<W>* row, std::size_t blocks, std::size_t r, TileByte<W>* segment) {
    CHECK(blocks == kSegmentBlocks, "{}: a segment of {} blocks", dtype_name(Layout::kType), blocks);
    Layout::template row<W>(row, blocks, r, segment);
  }
};

}  // namespace

const TileFormat* lattice_tile_format(DType type) {
  switch (type) {
#define TANDEM_LATTICE(name, Layout) \
  case DType::name:                  \
    return &kTileFormatOf<WholeBlocks<Layout>>
    TANDEM_LATTICE(IQ2_XXS, Iq2XxsLayout);
    TANDEM_LATTICE(IQ2_XS, Iq2XsLayout);
    TANDEM_LATTICE(IQ2_S, Iq2SLayout);
    TANDEM_LATTICE(IQ3_XXS, Iq3XxsLayout);
    TANDEM_LATTICE(IQ3_S, Iq3SLayout);
    TANDEM_LATTICE(IQ1_S, Iq1SLayout);
    TANDEM_LATTICE(IQ1_M, Iq1MLayout);
#undef TANDEM_LATTICE
    default:
      return nullptr;
  }
}

}  // namespace tandem::tile_internal
