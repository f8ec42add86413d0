// Expert FFN: every machine against ReferenceOps, and against the operations that it is made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cpu/reference_ops.h"
#include "runtime/exact_math.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/oracle.h"
#include "tests/ops/twin.h"

namespace tandem::testing {
namespace {

struct BankShape {
  DType gate, up, down;
  std::size_t d, ff;
  bool fused = false;   // up rows right after the gate rows of the same expert
  bool scaled = false;  // per-expert scales
};

// A bank of experts with odd distances between them.
struct Bank {
  static constexpr std::size_t kExperts = 7;
  Weights gate, up, down;
  std::vector<float> scales;
  ExpertBank bank;

  Bank(const BankShape& s, Random& random) {
    gate = weights(s.gate, s.fused ? 2 * kExperts * s.ff : kExperts * s.ff, s.d, random);
    up = weights(s.up, kExperts * s.ff, s.d, random);
    down = weights(s.down, kExperts * s.d, s.ff, random);
    bank.gate = gate.view.slice(0, s.ff);
    bank.up = s.fused ? gate.view.slice(s.ff, s.ff) : up.view.slice(0, s.ff);
    bank.down = down.view.slice(0, s.d);
    bank.gate_up_stride = (s.fused ? 2 : 1) * s.ff * gate.view.row_size();
    bank.up_stride = s.fused ? bank.gate_up_stride : s.ff * up.view.row_size();
    bank.down_stride = s.d * down.view.row_size();
    bank.experts = kExperts;
    for (std::size_t i = 0; s.scaled && i < 3 * kExperts; ++i) scales.push_back(random.uniform(0.5F, 2.0F));
    if (s.scaled) {
      bank.gate_scale = scales.data();
      bank.up_scale = scales.data() + kExperts;
      bank.down_scale = scales.data() + 2 * kExperts;
    }
  }
  static Weights weights(DType type, std::size_t rows, std::size_t cols, Random& random) {
    if (dtype_info(type).kind == DTypeKind::kBlock) return block_weights(type, rows, cols, Scales::kNormal, random, 1);
    return float_weights(type, rows, cols, Values::kNormal, random);
  }
};

const BankShape kBanks[] = {
    {DType::Q4_K, DType::Q4_K, DType::Q5_1, 256, 96},
    {DType::Q4_0, DType::Q4_0, DType::Q8_0, 96, 32, true},
    {DType::NVFP4, DType::NVFP4, DType::NVFP4, 64, 128, false, true},
    {DType::F32, DType::F32, DType::F32, 40, 24},
    {DType::F16, DType::BF16, DType::Q4_0, 33, 64},
    {DType::IQ2_XXS, DType::Q6_K, DType::F16, 256, 40},
    {DType::Q8_0, DType::F32, DType::Q2_0, 32, 192},
};

std::string label(const BankShape& s) {
  return fmt::format("{}, {}, {}; d {}, ff {}", dtype_name(s.gate), dtype_name(s.up), dtype_name(s.down), s.d, s.ff);
}

// Rows of activations with their quantised form where the length allows one.
struct Inputs {
  Floats x;
  OwnedQuant q;

  Inputs(std::size_t rows, std::size_t d, Values values, Random& random) : x(rows, d, 3), q(rows, d % 32 == 0 ? d : 0) {
    x.fill([&] { return draw(random, values); });
    if (d % 32 == 0) {
      EXPECT_EQ(ReferenceOps().quantize(rows_of(std::as_const(x)), q.rows()), -1);
    }
  }
  Activation rows(std::size_t first, std::size_t count) {
    return {rows_of(std::as_const(x), first, count), x.cols() % 32 == 0 ? q.rows().slice(first, count) : QuantRows{}};
  }
};

class Experts : public MachineTest {};
INSTANTIATE_FOR_MACHINES(Experts);

TEST_P(Experts, BankTwin) {
  Random random(54);
  const auto expect = [&](const BankShape& s, std::size_t rows, std::size_t used, Values values) {
    const Bank bank(s, random);
    Inputs in(rows, s.d, values, random);
    Guarded<std::int32_t> experts(rows, used);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = 0, e = random.below(7); k < used; ++k, e += 3)
        experts.row(r)[k] = static_cast<std::int32_t>(e % 7);
    Floats weights(rows, used);
    weights.fill([] { return 0.5F; });
    const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
      const Routes routes{experts.row(first), weights.row(first), count, used};
      ops.expert_ffn(bank.bank, routes, in.rows(first, count), rows_of(results.floats(count * used, s.d)));
    };
    const auto what = fmt::format("{}, {} used, {}", label(s), used, values_name(values));
    expect_twin(machine(), {.what = what, .rows = rows, .inputs = {&in.x, &experts, &weights}, .run = run});
  };
  for (const BankShape& s : kBanks) {
    for (const Values values : {Values::kNormal, Values::kTiny, Values::kDenormal, Values::kZero})
      expect(s, 3, 2, values);
    for (const std::size_t rows : kRowCounts) expect(s, rows, rows % 2 == 0 ? 4 : 1, Values::kNormal);
  }
  expect(kBanks[0], 9, 7, Values::kNormal);
}

TEST_P(Experts, FfnTwin) {
  Random random(55);
  for (const BankShape& s : kBanks)
    for (const std::size_t rows : {1U, 2U, 3U, 5U, 8U, 9U, 16U, 40U}) {
      const Bank bank(s, random);
      Inputs in(rows, s.d, Values::kNormal, random);
      const ExpertWeights weights = bank.bank.expert(static_cast<int>(random.below(7)));
      const auto run = [&](Ops& ops, std::size_t first, std::size_t count, Results& results) {
        ops.ffn(weights, in.rows(first, count), rows_of(results.floats(count, s.d)));
      };
      expect_twin(machine(), {.what = label(s), .rows = rows, .inputs = {&in.x}, .run = run});
    }
}

// R5 word for word: gate and up products, silu(gate) * up, quantised, down product; and a bank is its experts.
TEST_P(Experts, AreTheirParts) {
  Random random(56);
  Ops& ops = machine();
  for (const BankShape& s : kBanks) {
    const Bank bank(s, random);
    constexpr std::size_t kRows = 3;
    Inputs in(kRows, s.d, Values::kNormal, random);
    std::vector<std::int32_t> experts = {6, 0, 3};
    std::vector<float> weights(kRows, 1.0F);
    Floats routed(kRows, s.d);
    ops.expert_ffn(bank.bank, {experts.data(), weights.data(), kRows, 1}, in.rows(0, kRows), rows_of(routed));
    for (std::size_t r = 0; r < kRows; ++r) {
      const ExpertWeights w = bank.bank.expert(experts[r]);
      Floats gate(1, s.ff), up(1, s.ff), y(1, s.d), alone(1, s.d);
      ops.matmul(w.gate, in.rows(r, 1), rows_of(gate));
      ops.matmul(w.up, in.rows(r, 1), rows_of(up));
      for (std::size_t i = 0; i < s.ff; ++i)
        gate.row(0)[i] = (gate.row(0)[i] / (1.0F + exp_c(-gate.row(0)[i]))) * up.row(0)[i];
      OwnedQuant hidden(1, s.ff % 32 == 0 ? s.ff : 0);
      if (s.ff % 32 == 0) {
        ASSERT_EQ(ops.quantize(rows_of(std::as_const(gate)), hidden.rows()), -1);
      }
      ops.matmul(w.down, {rows_of(std::as_const(gate)), s.ff % 32 == 0 ? hidden.rows() : QuantRows{}}, rows_of(y));
      ops.ffn(w, in.rows(r, 1), rows_of(alone));
      EXPECT_EQ(std::memcmp(y.row(0), alone.row(0), s.d * sizeof(float)), 0) << label(s) << ", ffn, row " << r;
      EXPECT_EQ(std::memcmp(y.row(0), routed.row(r), s.d * sizeof(float)), 0) << label(s) << ", bank, row " << r;
    }
  }
}

// A hidden value that overflows turns its row, and only its row, into NaN.
TEST_P(Experts, AnOverflowStaysVisible) {
  Random random(57);
  const BankShape s{DType::F32, DType::F32, DType::Q8_0, 40, 64};
  const Bank bank(s, random);
  constexpr std::size_t kRows = 3;
  Inputs in(kRows, s.d, Values::kNormal, random);
  for (std::size_t c = 0; c < s.d; ++c) in.x.row(1)[c] = 1e25F * random.uniform();
  std::vector<std::int32_t> experts = {2, 2, 2};
  std::vector<float> weights(kRows, 1.0F);
  Floats bank_y(kRows, s.d), ffn_y(kRows, s.d);
  for (Floats* y : {&bank_y, &ffn_y}) y->fill([] { return 0.0F; });  // they start as NaN
  machine().expert_ffn(bank.bank, {experts.data(), weights.data(), kRows, 1}, in.rows(0, kRows), rows_of(bank_y));
  machine().ffn(bank.bank.expert(2), in.rows(0, kRows), rows_of(ffn_y));
  for (const Floats* y : {&bank_y, &ffn_y})
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t c = 0; c < s.d; ++c) ASSERT_EQ(std::isnan(y->row(r)[c]), r == 1) << r << ", " << c;
}

}  // namespace
}  // namespace tandem::testing
