// Products and experts of a loaded model (packed tiles), every instruction set and worker count against ReferenceOps on
// the file's own blocks. The matrices are those of small synthetic models that between them hold every weight type.
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/reference_ops.h"
#include "runtime/model.h"
#include "tests/machines.h"
#include "tests/ops/cases.h"
#include "tests/ops/twin.h"
#include "tests/synthetic_model.h"

namespace tandem::testing {
namespace {

struct Loader {
  TileIsa isa;
  int workers;

  friend void PrintTo(const Loader& l, std::ostream* out) { *out << tile_isa_name(l.isa) << ", " << l.workers; }
};

std::vector<Loader> loaders() {
  std::vector<Loader> list = {{best_tile_isa(), 1}};
  for (const TileIsa isa : kAllTileIsas) list.push_back({isa, 2});
  return list;
}
std::string loader_name(const ::testing::TestParamInfo<Loader>& info) {
  return fmt::format("{}_{}", tile_isa_name(info.param.isa), info.param.workers);
}

// Rows of 256, 288 and 96 columns; 4, 40, 96 and 288 rows, so that last tiles are ragged and last segments short.
ModelShape mixed_shape(std::int64_t expert_ff) {
  ModelShape shape = tiny_shape();
  shape.mtp_layers = 0;
  shape.hidden = 256;
  shape.hc_rank = 40;
  shape.expert_ff = expert_ff;
  shape.shared_expert_ff = 96;
  return shape;
}

class Loaded : public ::testing::TestWithParam<Loader> {
 protected:
  void SetUp() override {
    if (!tile_isa_supported(GetParam().isa)) GTEST_SKIP() << "this processor has no " << tile_isa_name(GetParam().isa);
  }
  // The model number `salt` of a series that gives every tensor a type after the other.
  void open(std::size_t salt, std::int64_t expert_ff = 288) {
    std::vector<DType> types = types_of_kind(DTypeKind::kBlock);
    types.push_back(DType::F16);
    std::size_t next = 7 * salt;
    open(mixed_shape(expert_ff), [&](const tandem::TensorSpec& spec) {
      const bool matrix = spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank;
      return matrix ? types[next++ % types.size()] : DType::F32;
    });
  }
  // Matrices that `scaled` gives a scale, which stands beside the weights.
  static constexpr const char* kScaled[] = {"output", "blk.0.ffn_gate_shexp", "blk.0.ffn_up_shexp",
                                            "blk.0.ffn_down_shexp"};
  void open(const ModelShape& shape, const std::function<DType(const tandem::TensorSpec&)>& type, bool scaled = false) {
    loaded_ = {};  // it must not outlive its model and machine
    SyntheticOptions options;
    options.shape = shape;
    options.type = type;
    GgufBuilder builder = synthetic_model(options);
    if (scaled)
      for (const char* name : kScaled) builder.tensor(std::string(name) + ".scale", std::vector<float>{0.37F});
    image_ = builder.build();
    model_.emplace(Model::bind(Gguf::parse(image_)));
    ops_ = std::make_unique<CpuOps>(GetParam().workers, GetParam().isa);
    std::size_t packed = 0;
    LoadOptions load;
    load.progress = [&](std::size_t done, std::size_t) { packed = done; };
    loaded_ = ops_->load(*model_, load);
    ASSERT_GT(packed, 0U) << "nothing was loaded";
  }
  void TearDown() override { loaded_ = {}; }

  Ops& ops() const { return *ops_; }
  const Model& model() const { return *model_; }
  Random& random() { return random_; }

 private:
  std::vector<std::uint8_t> image_;
  std::optional<Model> model_;
  std::unique_ptr<CpuOps> ops_;
  LoadedModel loaded_;
  Random random_{81};
};
INSTANTIATE_TEST_SUITE_P(All, Loaded, ::testing::ValuesIn(loaders()), loader_name);

// Rows with their quantised form where the length allows one.
struct Inputs {
  Floats x;
  OwnedQuant q;

  Inputs(std::size_t rows, std::size_t cols, Values values, Random& random)
      : x(rows, cols, 3), q(rows, cols % 32 == 0 ? cols : 0) {
    x.fill([&] { return draw(random, values); });
    if (cols % 32 == 0) {
      EXPECT_EQ(ReferenceOps().quantize(rows_of(std::as_const(x)), q.rows()), -1);
    }
  }
  Activation rows(std::size_t first, std::size_t count) {
    return {rows_of(std::as_const(x), first, count), x.cols() % 32 == 0 ? q.rows().slice(first, count) : QuantRows{}};
  }
};

std::vector<const WeightView*> matrices(const Model& model) {
  std::vector<const WeightView*> list = {&model.output, &model.output_hc.down, &model.output_hc.up};
  const auto add = [&](std::initializer_list<const WeightView*> views) { list.insert(list.end(), views); };
  for (const LayerWeights& layer : model.layers) {
    for (const HcWeights* hc : {&layer.hc_attn, &layer.hc_ffn}) add({&hc->down, &hc->up, &hc->inject});
    if (layer.gdn) add({&layer.gdn->qkv, &layer.gdn->gate, &layer.gdn->alpha, &layer.gdn->beta, &layer.gdn->out});
    if (layer.attention)
      add({&layer.attention->q, &layer.attention->k, &layer.attention->v, &layer.attention->out,
           &layer.attention->indexer_q, &layer.attention->indexer_k});
    if (layer.ple) add({&layer.ple->key, &layer.ple->value});
    add({&layer.moe.router, &layer.moe.shared_gate, &layer.moe.shared.gate, &layer.moe.shared.up,
         &layer.moe.shared.down});
  }
  return list;
}

TEST_P(Loaded, Matrices) {
  for (const std::size_t salt : {0U, 1U}) {
    open(salt);
    for (const WeightView* w : matrices(model())) {
      const std::size_t rows = 1 + random().below(9);
      const Values values = kAllValues[random().below(3)];  // normal, tiny, denormal
      Inputs in(rows, w->cols, random().below(3) == 0 ? Values::kSigns : values, random());
      const auto run = [&](Ops& machine, std::size_t first, std::size_t count, Results& results) {
        machine.matmul(*w, in.rows(first, count), rows_of(results.floats(count, w->rows)));
      };
      const auto what = fmt::format("{}, {} [{}, {}]", w->name, dtype_name(w->type), w->rows, w->cols);
      expect_twin(ops(), {.what = what, .rows = rows, .inputs = {&in.x, &in.q.q, &in.q.d, &in.q.s}, .run = run});
    }
  }
}

// Several matrices of one input at once: every type of the models beside every other, float ones among them.
TEST_P(Loaded, MatricesTogether) {
  open(2);
  const std::vector<const WeightView*> all = matrices(model());
  for (const std::size_t cols : {40U, 96U, 256U, 1024U}) {
    std::vector<const WeightView*> list;
    for (const WeightView* w : all)
      if (w->cols == cols) list.push_back(w);
    for (std::size_t first = 0; first < list.size(); first += 4) {
      const std::size_t count = std::min<std::size_t>(4, list.size() - first), rows = 1 + random().below(9);
      Inputs in(rows, cols, Values::kNormal, random());
      if (!in.rows(0, 1).q &&
          std::any_of(list.begin(), list.end(), [](const WeightView* w) { return has_tile_layout(w->type); }))
        continue;  // a block format needs whole blocks
      const auto run = [&](Ops& machine, std::size_t at, std::size_t n, Results& results) {
        std::vector<Ops::Product> products;
        for (std::size_t i = first; i < first + count; ++i)
          products.push_back({*list[i], rows_of(results.floats(n, list[i]->rows))});
        machine.matmuls(products, in.rows(at, n));
      };
      const auto what = fmt::format("{} matrices of {} columns from {}", count, cols, list[first]->name);
      expect_twin(ops(), {.what = what, .rows = rows, .inputs = {&in.x, &in.q.q, &in.q.d, &in.q.s}, .run = run});
    }
  }
}

void expect_experts_twin(Ops& ops, const MoeWeights& moe, std::size_t rows, Values values, Random& random,
                         bool nan_allowed = false) {
  constexpr std::size_t kUsed = 3;
  Inputs in(rows, moe.routed.gate.cols, values, random);
  Guarded<std::int32_t> experts(rows, kUsed);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t k = 0, e = random.below(8); k < kUsed; ++k, e += 3)
      experts.row(r)[k] = static_cast<std::int32_t>(e % 8);
  Floats weights(rows, kUsed);
  weights.fill([] { return 0.5F; });
  const auto run = [&](Ops& machine, std::size_t first, std::size_t count, Results& results) {
    const Routes routes{experts.row(first), weights.row(first), count, kUsed};
    machine.expert_ffn(moe.routed, routes, in.rows(first, count),
                       rows_of(results.floats(count * kUsed, moe.routed.down.rows)));
    machine.ffn(moe.shared, in.rows(first, count), rows_of(results.floats(count, moe.shared.down.rows)));
    // All of it in one list, as where nothing is on a card.
    Floats& crew_y = results.floats(count * kUsed, moe.routed.down.rows);
    machine.start_experts(moe.routed, routes, in.rows(first, count), rows_of(crew_y),
                          {&moe.shared, rows_of(results.floats(count, moe.shared.down.rows))});
    machine.finish_experts();
  };
  const auto what = fmt::format("experts {}, {}, {}; {}", dtype_name(moe.routed.gate.type),
                                dtype_name(moe.routed.up.type), dtype_name(moe.routed.down.type), values_name(values));
  expect_twin(ops, {.what = what, .rows = rows, .inputs = {&in.x, &experts}, .run = run, .nan_allowed = nan_allowed});
}

TEST_P(Loaded, Experts) {
  for (const std::int64_t expert_ff : {288, 256, 96}) {
    open(static_cast<std::size_t>(expert_ff), expert_ff);
    for (const LayerWeights& layer : model().layers) {
      expect_experts_twin(ops(), layer.moe, 1, Values::kNormal, random());
      expect_experts_twin(ops(), layer.moe, 2, Values::kTiny, random());
      expect_experts_twin(ops(), layer.moe, 9, Values::kNormal, random());
    }
  }
}

// Scales beside the weights, one per matrix or expert, as NVFP4 files have them; a type with tiles may have them too.
TEST_P(Loaded, Scales) {
  const auto type = [](const tandem::TensorSpec& spec) {
    const bool matrix = spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank;
    return matrix ? DType::Q4_0 : DType::F32;
  };
  open(mixed_shape(96), type, true);
  ASSERT_EQ(model().output.scale, 0.37F);
  ASSERT_EQ(model().layers[0].moe.shared.down.scale, 0.37F);
  Inputs in(3, model().output.cols, Values::kNormal, random());
  const auto run = [&](Ops& machine, std::size_t first, std::size_t count, Results& results) {
    machine.matmul(model().output, in.rows(first, count), rows_of(results.floats(count, model().output.rows)));
  };
  expect_twin(ops(), {.what = "output with a scale", .rows = 3, .inputs = {&in.x}, .run = run});
  MoeWeights moe = model().layers[0].moe;
  const auto experts = static_cast<std::size_t>(moe.routed.experts);
  std::vector<float> scales(3 * experts);
  for (float& scale : scales) scale = random().uniform(0.5F, 2.0F);
  moe.routed.gate_scale = scales.data();
  moe.routed.up_scale = scales.data() + experts;
  moe.routed.down_scale = scales.data() + 2 * experts;
  expect_experts_twin(ops(), moe, 5, Values::kNormal, random());
}

// Activations of 1e30: hidden values overflow, and their rows are NaN in the same places on every machine.
TEST_P(Loaded, OverflowStaysVisible) {
  open(mixed_shape(96), [](const tandem::TensorSpec& spec) {
    const bool matrix = spec.form == TensorForm::kMatrix || spec.form == TensorForm::kBank;
    return matrix ? DType::Q8_0 : DType::F32;
  });
  expect_experts_twin(ops(), model().layers[0].moe, 3, Values::kLarge, random(), true);
  Inputs in(1, 256, Values::kLarge, random());
  Floats y(1, 256);
  ops().ffn(model().layers[0].moe.shared, in.rows(0, 1), rows_of(y));
  for (std::size_t c = 0; c < 256; ++c) ASSERT_TRUE(std::isnan(y.row(0)[c])) << c;
}

// Without the token the machine reads the file's blocks again.
TEST_P(Loaded, ReleasedModelsAreReadFromTheFile) {
  open(1);
  TearDown();
  const WeightView& w = model().layers[0].gdn->qkv;
  Inputs in(3, w.cols, Values::kNormal, random());
  const auto run = [&](Ops& machine, std::size_t first, std::size_t count, Results& results) {
    machine.matmul(w, in.rows(first, count), rows_of(results.floats(count, w.rows)));
  };
  expect_twin(ops(), {.what = "released", .rows = 3, .inputs = {&in.x}, .run = run});
}

}  // namespace
}  // namespace tandem::testing
