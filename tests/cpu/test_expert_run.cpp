// Lists of packed experts on a crew, against the scalar reference products of the file's rows: bit for bit, over
// numbers of experts, rows and threads, with gate and up apart and together.
#include "cpu/expert_run.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "cpu/crew.h"
#include "cpu/reference_dot.h"
#include "runtime/exact_math.h"
#include "runtime/tile.h"
#include "tests/gguf_builder.h"

namespace tandem::testing {
namespace {

struct Matrix {
  DType type;
  std::size_t rows, cols;
  std::vector<std::uint8_t> file, tiles;

  Matrix(DType type_, std::size_t rows_, std::size_t cols_, std::uint32_t seed)
      : type(type_), rows(rows_), cols(cols_), file(random_weights(type, rows * cols, seed)) {
    const std::size_t tile = tile_bytes(type, cols);
    tiles.resize((rows + kTileRows - 1) / kTileRows * tile);
    for (std::size_t first = 0; first < rows; first += kTileRows)
      pack_tile(type, file.data() + first * row_bytes(type, cols), std::min(kTileRows, rows - first), cols,
                tiles.data() + first / kTileRows * tile);
  }
  PackedTiles packed(float scale) const {
    return {tile_function(best_tile_isa(), type), rows, cols, tile_bytes(type, cols), tiles.data(), scale};
  }
};

struct Quantised {
  std::size_t rows, cols;
  std::vector<std::int8_t> q;
  std::vector<float> d;
  std::vector<std::int32_t> s;
  Quantised(std::size_t rows_, std::size_t cols_)
      : rows(rows_), cols(cols_), q(rows * cols), d(rows * cols / 32), s(rows * cols / 16) {}
  bool set(std::size_t r, const float* x) {
    return quantize_row_ref(x, cols, &q[r * cols], &d[r * cols / 32], &s[r * cols / 16]);
  }
  float times(std::size_t r, const Matrix& m, std::size_t n) const {
    return dot_block_ref(m.type, m.file.data() + n * row_bytes(m.type, cols), cols, &q[r * cols], &d[r * cols / 32],
                         &s[r * cols / 16]);
  }
};

struct Expert {
  Matrix gate, up, down;
  Expert(DType wide, DType narrow, std::size_t hidden, std::size_t ff, std::uint32_t seed)
      : gate(wide, ff, hidden, seed), up(wide, ff, hidden, seed + 1), down(narrow, hidden, ff, seed + 2) {}

  std::vector<float> reference(const Quantised& x, std::size_t row) const {
    std::vector<float> h(gate.rows), y(down.rows, NAN);
    for (std::size_t n = 0; n < h.size(); ++n) h[n] = silu_c(x.times(row, gate, n)) * (x.times(row, up, n) * 0.5F);
    Quantised hidden(1, h.size());
    if (!hidden.set(0, h.data())) return y;
    for (std::size_t n = 0; n < y.size(); ++n) y[n] = hidden.times(0, down, n);
    return y;
  }
};

struct Shape {
  DType wide, narrow;
  std::size_t hidden, ff;
};

// Experts e of a list get rows_of(e) rows each; every result is compared, twice on one ExpertRun.
template <typename RowsOf>
void expect_reference(Crew& crew, ExpertRun& list, const Shape& shape, std::size_t experts, RowsOf&& rows_of) {
  std::mt19937 random(static_cast<std::uint32_t>(experts + shape.ff));
  std::size_t most = 0;
  for (std::size_t e = 0; e < experts; ++e) most = std::max(most, rows_of(e));
  Quantised x(most, shape.hidden);
  for (std::size_t r = 0; r < most; ++r) {
    std::vector<float> values(shape.hidden);
    for (float& v : values) v = std::normal_distribution<float>()(random);
    ASSERT_TRUE(x.set(r, values.data()));
  }
  std::vector<Expert> all;
  for (std::size_t e = 0; e < experts; ++e)
    all.emplace_back(shape.wide, shape.narrow, shape.hidden, shape.ff, static_cast<std::uint32_t>(10 * e + experts));
  const Activation a{{}, {x.q.data(), x.d.data(), x.s.data(), most, shape.hidden}};
  std::size_t pairs = 0;
  for (std::size_t e = 0; e < experts; ++e) pairs += rows_of(e);
  for (int round = 0; round < 2; ++round) {
    std::vector<float> y(pairs * shape.hidden, -1.0F);
    list.begin(a);
    float* out = y.data();
    for (std::size_t e = 0; e < experts; ++e) {
      list.add_expert({all[e].gate.packed(1.0F), all[e].up.packed(0.5F), all[e].down.packed(1.0F)}, {});
      for (std::size_t r = 0; r < rows_of(e); ++r, out += shape.hidden) list.add_row(r, out);
    }
    list.finish(crew.workers());
    const auto unit = [&](std::size_t u) { list.run(u); };
    const Crew::Body body(unit);
    crew.start_experts(list.units(), body);
    crew.wait_experts();
    const float* found = y.data();
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t r = 0; r < rows_of(e); ++r, found += shape.hidden) {
        if (rows_of(e) > 8 && r % 37 != 0 && r + 1 != rows_of(e)) continue;  // the reference is slow
        const std::vector<float> expected = all[e].reference(x, r);
        ASSERT_TRUE(std::isfinite(expected[0]));
        ASSERT_EQ(std::memcmp(expected.data(), found, expected.size() * sizeof(float)), 0)
            << "expert " << e << " of " << experts << ", row " << r << ", " << crew.workers() << " workers, ff "
            << shape.ff << ", round " << round;
      }
  }
}

TEST(ExpertRun, GivesTheBitsOfTheReference) {
  for (const int workers : {1, 3, 7}) {
    Crew crew({workers, {}});
    ExpertRun list;  // one for all: what a list leaves behind must not reach the next
    for (const Shape& shape : {Shape{DType::IQ3_XXS, DType::IQ4_NL, 256, 96}, Shape{DType::Q4_K, DType::Q4_0, 512, 64},
                               Shape{DType::Q8_0, DType::Q8_0, 64, 1056}})  // 66 pairs of tiles: two words
      for (const std::size_t experts : {1UL, 2UL, 5UL, 12UL}) {
        expect_reference(crew, list, shape, experts, [](std::size_t) { return 1UL; });
        expect_reference(crew, list, shape, experts, [](std::size_t e) { return 1 + e % 3; });
      }
  }
}

// Around the number of rows up to which gate and up are apart, and more rows than one call of a kernel takes.
TEST(ExpertRun, ManyRows) {
  Crew crew({4, {}});
  ExpertRun list;
  const Shape shape{DType::Q4_0, DType::Q4_0, 64, 96};
  expect_reference(crew, list, shape, 2, [](std::size_t e) { return e == 0 ? 186UL : 70UL; });  // 256
  expect_reference(crew, list, shape, 2, [](std::size_t e) { return e == 0 ? 187UL : 70UL; });
  expect_reference(crew, list, shape, 1, [](std::size_t) { return 300UL; });
  expect_reference(crew, list, shape, 1, [](std::size_t) { return 65UL; });
}

// The last unit, begun before all others, gives the same: it waits for the hidden rows.
TEST(ExpertRun, DownWaitsForHiddenRows) {
  const Expert expert(DType::IQ3_XXS, DType::IQ4_NL, 256, 96, 7);
  Quantised x(1, 256);
  std::vector<float> values(256), y(256, -1.0F);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17) - 8.0F;
  ASSERT_TRUE(x.set(0, values.data()));
  ExpertRun list;
  list.begin({{}, {x.q.data(), x.d.data(), x.s.data(), 1, 256}});
  list.add_expert({expert.gate.packed(1.0F), expert.up.packed(0.5F), expert.down.packed(1.0F)}, {});
  list.add_row(0, y.data());
  list.finish(16);
  std::thread early([&] { list.run(list.units() - 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (std::size_t u = 0; u + 1 < list.units(); ++u) list.run(u);
  early.join();
  const std::vector<float> expected = expert.reference(x, 0);
  EXPECT_EQ(std::memcmp(expected.data(), y.data(), y.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tandem::testing
