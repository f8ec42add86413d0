// Ops::quantize and Ops::matmul of block formats, every machine against ReferenceOps (R2, R3, R4).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cpu/reference_ops.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

class Quantize : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Quantize);

void expect_quantize_twin(Ops& machine, const Floats& x, std::string what) {
  const auto run = [&x](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    const QuantArrays q = results.quant(count, x.cols());
    EXPECT_EQ(ops.quantize(rows_of(x, first, count), q.rows()), -1);
  };
  expect_twin(machine, {.what = std::move(what), .rows = x.rows(), .inputs = {&x}, .run = run});
}

TEST_P(Quantize, Twin) {
  Random random(1);
  for (const Values values : kAllValues)
    for (const std::size_t rows : kRowCounts)
      for (const std::size_t cols : {32U, 96U, 640U, 2560U}) {
        Floats x(rows, cols, 3);
        x.fill([&] { return draw(random, values); });
        expect_quantize_twin(machine(), x, fmt::format("{} columns, {}", cols, values_name(values)));
      }
}

// Blocks whose largest magnitude steps through the place where 127 / amax overflows, and through the largest float.
TEST_P(Quantize, ScalesAtTheEdges) {
  constexpr std::uint32_t kSteps = 64;
  Random random(2);
  for (const float centre : {127.0F / std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                             std::bit_cast<float>(0x7F7FFFFFU - kSteps), 127.0F, 1.0F}) {
    Floats x(2 * kSteps, 32);
    x.fill([&] { return centre * 0.5F * random.uniform(); });
    for (std::uint32_t r = 0; r < 2 * kSteps; ++r) {
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(centre) + r - kSteps;
      x.row(r)[random.below(32)] = random.sign() * std::bit_cast<float>(bits);
    }
    expect_quantize_twin(machine(), x, fmt::format("amax around {}", centre));
  }
}

TEST_P(Quantize, BlocksBelowTheEdgeAreZero) {
  const float edge = 127.0F / std::numeric_limits<float>::max();
  Floats x(2, 32);
  x.fill([&] { return 0.0F; });
  x.row(0)[5] = -edge * 0.99F;
  x.row(1)[5] = -edge * 1.01F;
  OwnedQuant q(2, 32);
  ASSERT_EQ(machine().quantize(rows_of(x), q.rows()), -1);
  EXPECT_EQ(q.q.row(0)[5], 0);
  EXPECT_EQ(q.d.row(0)[0], 0.0F);
  EXPECT_EQ(q.q.row(1)[5], -127);
  EXPECT_GT(q.d.row(1)[0], 0.0F);
}

// With amax = 127 a value is its own code: k + 1/2 goes to the even neighbour, and the ends stay at +-127.
TEST_P(Quantize, TiesGoToEven) {
  for (int k = 0; k < 127; ++k) {
    Floats x(1, 32);
    x.fill([] { return 0.0F; });
    x.row(0)[0] = 127.0F;
    x.row(0)[15] = static_cast<float>(k) + 0.5F;
    x.row(0)[16] = -static_cast<float>(k) - 0.5F;
    x.row(0)[31] = -127.0F;
    OwnedQuant q(1, 32);
    ASSERT_EQ(machine().quantize(rows_of(x), q.rows()), -1);
    const int even = k % 2 == 0 ? k : k + 1;
    EXPECT_EQ(q.q.row(0)[0], 127);
    EXPECT_EQ(q.q.row(0)[15], even);
    EXPECT_EQ(q.q.row(0)[16], -even);
    EXPECT_EQ(q.q.row(0)[31], -127);
    EXPECT_EQ(q.d.row(0)[0], 1.0F);
    EXPECT_EQ(q.s.row(0)[0], 127 + even);
    EXPECT_EQ(q.s.row(0)[1], -127 - even);
  }
}

TEST_P(Quantize, ReportsTheFirstRowThatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  Random random(3);
  for (const std::size_t cols : {32U, 96U, 2560U})
    for (const float bad : {kInfinity, -kInfinity, kNan, -kNan, std::bit_cast<float>(0x7F800001U)})
      for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{15}, std::size_t{16},
                                   std::size_t{31}, cols - 1})
        for (const std::size_t row : {0U, 2U, 4U}) {
          Floats x(5, cols);
          x.fill([&] { return draw(random, Values::kNormal); });
          x.row(row)[at] = bad;
          x.row(4)[cols / 2] = bad;
          OwnedQuant q(5, cols);
          EXPECT_EQ(machine().quantize(rows_of(x), q.rows()), static_cast<std::int64_t>(row))
              << cols << " columns, " << bad << " at " << row << ", " << at;
          EXPECT_TRUE(q.q.guards_intact() && q.d.guards_intact() && q.s.guards_intact());
        }
}

// ---- products -------------------------------------------------------------------------------------------------------

struct TypedMachine {
  Machine machine;
  DType type;

  friend void PrintTo(const TypedMachine& t, std::ostream* out) {
    *out << t.machine.name << ", " << dtype_name(t.type);
  }
};

class BlockMatmul : public ::testing::TestWithParam<TypedMachine> {
 protected:
  Ops& machine() const { return *machine_; }

 private:
  std::unique_ptr<Ops> machine_ = GetParam().machine.make(nullptr);
};

std::vector<TypedMachine> typed_machines() {
  std::vector<TypedMachine> list;
  for (const Machine& machine : machines())
    for (const DType type : types_of_kind(DTypeKind::kBlock)) list.push_back({machine, type});
  return list;
}
std::string typed_machine_name(const ::testing::TestParamInfo<TypedMachine>& parameter) {
  return parameter.param.machine.name + "_" + std::string(dtype_name(parameter.param.type));
}
INSTANTIATE_TEST_SUITE_P(All, BlockMatmul, ::testing::ValuesIn(typed_machines()), typed_machine_name);

void expect_matmul_twin(Ops& machine, const WeightView& w, Values values, std::size_t rows, Random& random) {
  Floats x(rows, w.cols, 3);
  x.fill([&] { return draw(random, values); });
  OwnedQuant q(rows, w.cols);
  ASSERT_EQ(ReferenceOps().quantize(rows_of(x), q.rows()), -1);
  const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
    const Activation a{rows_of(x, first, count), q.rows().slice(first, count)};
    ops.matmul(w, a, rows_of(results.floats(count, w.rows)));
  };
  const auto what = fmt::format("{} [{}, {}], {}", dtype_name(w.type), w.rows, w.cols, values_name(values));
  expect_twin(machine, {.what = what, .rows = rows, .inputs = {&x, &q.q, &q.d, &q.s}, .run = run});
}

// Every length, width and kind of value; the matrix starts at an odd address.
TEST_P(BlockMatmul, Twin) {
  const DType type = GetParam().type;
  Random random(static_cast<std::uint64_t>(type));
  const auto expect = [&](std::size_t rows, std::size_t n, std::size_t cols, Values values) {
    const Scales scales = values == Values::kLarge || values == Values::kMixed ? Scales::kModerate
                          : values == Values::kNormal                          ? Scales::kNormal
                                                                               : Scales::kExtreme;
    Weights w = block_weights(type, n, cols, scales, random, random.below(2) == 0 ? 0 : 1 + 2 * random.below(8));
    if (random.below(4) == 0) w.view.scale = random.uniform(0.1F, 2.0F);
    expect_matmul_twin(machine(), w.view, values, rows, random);
  };
  for (const std::size_t cols : kBlockLengths) {
    if (cols % dtype_info(type).block_elems != 0) continue;
    for (const Values values : kAllValues) expect(3, 3, cols, values);
    expect(1, 65, cols, Values::kNormal);
    expect(2, 17, cols, Values::kSigns);
    expect(5, 1, cols, Values::kNormal);
    expect(16, 3, cols, Values::kSigns);
    expect(40, 2, cols, Values::kNormal);
  }
}

// The largest products that integers must hold: every code at an extreme, every activation +-127 with equal signs.
TEST_P(BlockMatmul, LargestProducts) {
  const DType type = GetParam().type;
  Random random(7);
  constexpr std::size_t kCols = 512;
  for (const unsigned fill : {0x00U, 0xFFU, 0x80U, 0x7FU, 0x0FU, 0xF0U})
    for (const float sign : {1.0F, -1.0F}) {
      const Weights w = filled_block_weights(type, 3, kCols, static_cast<std::uint8_t>(fill), random);
      Floats x(2, kCols);
      x.fill([&] { return sign; });
      for (std::size_t c = 0; c < kCols; c += 2) x.row(1)[c] = -sign;
      OwnedQuant q(2, kCols);
      ASSERT_EQ(ReferenceOps().quantize(rows_of(x), q.rows()), -1);
      const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.matmul(w.view, {rows_of(x, first, count), q.rows().slice(first, count)}, rows_of(results.floats(count, 3)));
      };
      expect_twin(machine(), {.what = fmt::format("codes {:#x}", fill), .rows = 2, .inputs = {&x, &q.q}, .run = run});
    }
}

}  // namespace
}  // namespace tandem::testing
