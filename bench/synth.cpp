#include "bench/synth.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/noise.h"
#include "placement/check.h"
#include "tests/real_shape.h"
#include "tests/synthetic_model.h"

namespace tandem::bench {
namespace {

// Published mixtures by their main types (layers of 48; a shallower model keeps the layers that it has).
struct Recipe {
  std::string_view name;
  DType gate_up, gate_up_layer2, down;
  bool wide_downs;  // Q8_0 down matrices in layers 2, 4, 30, 46 and 47
  DType dense, embedding, head, ngram;
};
constexpr DType kQ8 = DType::Q8_0, kNl = DType::IQ4_NL;
constexpr std::array<Recipe, 9> kRecipes{{
    {"ud-q2_k_xl", DType::IQ2_XS, DType::IQ3_XXS, kNl, false, DType::Q5_K, DType::Q5_K, DType::Q4_K, kNl},
    {"ud-iq3_xxs", DType::IQ2_S, DType::IQ3_S, kNl, false, DType::Q6_K, DType::Q6_K, DType::Q6_K, kNl},
    {"ud-q3_k_xl", DType::IQ3_XXS, DType::IQ4_XS, kNl, true, kQ8, kQ8, DType::Q6_K, kNl},
    {"ud-iq4_xs", DType::IQ3_S, DType::IQ4_XS, kNl, true, kQ8, kQ8, DType::Q6_K, kNl},
    {"ud-q4_k_xl", DType::Q4_K, DType::Q5_K, DType::Q5_1, true, kQ8, kQ8, kQ8, kNl},
    {"q4", DType::Q4_K, DType::Q4_K, kNl, false, kQ8, kQ8, DType::Q6_K, kNl},
    {"q2_0", DType::Q2_0, DType::Q2_0, DType::Q2_0, false, DType::Q3_K, DType::Q3_K, DType::Q5_K, kNl},
    {"mxfp4", DType::MXFP4, DType::MXFP4, DType::MXFP4, false, kQ8, kQ8, kQ8, kQ8},
    {"q8_0", kQ8, kQ8, kQ8, false, kQ8, kQ8, kQ8, DType::Q4_0},
}};

bool fits(DType type, const TensorSpec& spec) {
  return spec.ne[0] % dtype_info(type).block_elems == 0;
}

// A type that was asked for by its own flag must fit.
DType fitting(DType type, const TensorSpec& spec, std::string_view flag) {
  if (!fits(type, spec))
    fail_input(
        "{}: expected a type whose blocks divide rows of {} values ({}), found {} with blocks of {}. Fix: a type "
        "with blocks of 32, for example IQ4_NL",
        flag, spec.ne[0], spec.name, dtype_name(type), dtype_info(type).block_elems);
  return type;
}

DType expert_type(const SynthOptions& options, const TensorSpec& spec, bool down) {
  DType type = down ? options.down : options.gate_up;
  for (const SynthOptions::LayerType& exception : options.layer_types)
    if (exception.layer == spec.block && exception.down == down) type = exception.type;
  return fitting(type, spec, down ? "--down" : "--gate-up");
}

bool is_prime(std::uint64_t n) {
  for (std::uint64_t k = 2; k * k <= n; ++k)
    if (n % k == 0) return false;
  return n > 1;
}

// Hash sizes as the model's authors chose them: consecutive primes, from the largest that leave the table full.
void set_ngram_table(std::int64_t rows, ModelShape& shape) {
  const auto heads = static_cast<std::size_t>(shape.ple_heads());
  shape.ple_rows = rows;
  std::uint64_t candidate = static_cast<std::uint64_t>(rows) / heads;
  for (std::size_t h = 0; h < heads; --candidate)
    if (is_prime(candidate)) {
      shape.ple_vocab_sizes.push_back(candidate);
      ++h;
    }
  std::reverse(shape.ple_vocab_sizes.begin(), shape.ple_vocab_sizes.end());
  std::uint64_t offset = 0;
  for (const std::uint64_t size : shape.ple_vocab_sizes) {
    shape.ple_offsets.push_back(offset);
    offset += size;
  }
  CHECK(offset <= static_cast<std::uint64_t>(rows), "{} of {}", offset, rows);
}

void check_count(std::string_view flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) fail_input("{}: expected {} to {}, found {}", flag, least, most, value);
}

}  // namespace

namespace {
int hot_count(const SynthOptions& options) {
  return static_cast<int>(std::lround(options.hot_experts * options.experts));
}

// x with P(normal > x) = p, for 0 < p < 0.5.
double upper_quantile(double p) {
  double low = 0, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(middle / std::sqrt(2.0)) / 2 > p ? low : high) = middle;
  }
  return low;
}
}  // namespace

bool is_hot_expert(const SynthOptions& options, int layer, int expert) {
  // The first ones of an order that differs from layer to layer.
  const auto key = [&](int e) {
    return mix_bits(mix_bits(options.seed + static_cast<std::uint64_t>(layer) * 0x9e3779b97f4a7c15U) +
                    static_cast<std::uint64_t>(e));
  };
  const std::uint64_t mine = key(expert);
  int before = 0;
  for (int e = 0; e < options.experts; ++e) before += key(e) < mine ? 1 : 0;
  return before < hot_count(options);
}

double cold_router_scale(const SynthOptions& options, int used) {
  const int hot = hot_count(options), cold = options.experts - hot;
  CHECK(hot > 0 && cold > 0, "{} hot experts of {}", hot, options.experts);
  // The chosen ones are those above one threshold: of the hot as many as their share says, and of the others.
  const double threshold = upper_quantile(options.hot_routes * used / hot);
  return threshold / upper_quantile((1 - options.hot_routes) * used / cold);
}

Census planted_census(const SynthOptions& options, const ModelShape& shape) {
  constexpr std::uint64_t kRows = 1'000'000;
  Census census;
  census.model = "synthetic";
  census.banks = shape.layers + shape.mtp_layers;
  census.experts = options.experts;
  census.used = shape.experts_used;
  RouteCounts& counts = census.domains["planted"].decode;
  counts.rows = kRows;
  const std::uint64_t all = kRows * static_cast<std::uint64_t>(census.used);
  const auto hot = static_cast<std::uint64_t>(hot_count(options));
  const auto hot_each = static_cast<std::uint64_t>(options.hot_routes * static_cast<double>(all)) / hot;
  const std::uint64_t cold_each = (all - hot_each * hot) / (static_cast<std::uint64_t>(options.experts) - hot);
  for (int bank = 0; bank < census.banks; ++bank) {
    std::uint64_t left = all;
    const std::size_t first = counts.routes.size();
    for (int e = 0; e < options.experts; ++e) {
      counts.routes.push_back(is_hot_expert(options, bank, e) ? hot_each : cold_each);
      left -= counts.routes.back();
    }
    counts.routes[first] += left;  // what the divisions left over
  }
  return census;
}

std::vector<std::string_view> recipe_names() {
  std::vector<std::string_view> names;
  for (const Recipe& recipe : kRecipes) names.push_back(recipe.name);
  return names;
}

void apply_recipe(std::string_view name, SynthOptions& options) {
  const auto found = std::find_if(kRecipes.begin(), kRecipes.end(), [&](const Recipe& r) { return r.name == name; });
  if (found == kRecipes.end())
    fail_input("--recipe: expected one of {}, found {}", fmt::join(recipe_names(), ", "), name);
  options.gate_up = found->gate_up;
  options.down = found->down;
  options.dense = found->dense;
  options.embedding = found->embedding;
  options.head = found->head;
  options.ngram = found->ngram;
  options.layer_types = {{2, false, found->gate_up_layer2}};
  if (!found->wide_downs) return;
  for (const int layer : {2, 4, 30, 46, 47}) options.layer_types.push_back({layer, true, DType::Q8_0});
}

ModelShape synth_shape(const SynthOptions& options) {
  constexpr int kMostLayers = 96, kMostExperts = 1024;
  check_count("--layers", options.layers, 4, kMostLayers);  // the fourth is the first attention layer
  check_count("--experts", options.experts, 10, kMostExperts);
  check_count("--vocab", options.vocab, testing::kMinVocab, 1 << 20);
  check_count("--ngram-rows", options.ngram_rows, 4096, std::int64_t{1} << 32);
  const double hot = options.hot_experts, routes = options.hot_routes;
  if ((hot != 0 || routes != 0) && !(hot >= 0.05 && routes > hot && routes <= 0.999 && hot <= 0.95))
    fail_input(
        "--skew: expected a share of experts from 0.05 to 0.95 and a larger share of routes up to 0.999, found {} "
        "and {}",
        hot, routes);
  ModelShape shape = real_shape();
  shape.layers = options.layers;
  shape.mtp_layers = options.mtp ? 1 : 0;
  shape.experts = options.experts;
  shape.vocab = options.vocab;
  shape.is_gdn.clear();
  for (int i = 0; i < options.layers; ++i) shape.is_gdn.push_back((i + 1) % 4 != 0);
  shape.ple_multipliers = {23703573157769, 20109073645365, 8052911324071};
  shape.ple_eos = testing::kEndOfText;
  shape.image_token = testing::kImagePad;
  set_ngram_table(options.ngram_rows, shape);
  return shape;
}

DType synth_type(const SynthOptions& options, const TensorSpec& spec) {
  using Role = TensorRole;
  if (spec.form != TensorForm::kMatrix && spec.form != TensorForm::kBank) return DType::F32;
  switch (spec.role) {
    case Role::kEmbedding:
      return fitting(options.embedding, spec, "--embedding");
    case Role::kHead:
      return fitting(options.head, spec, "--head");
    case Role::kNgramTable:
      return fitting(options.ngram, spec, "--ngram");
    case Role::kExpertGate:
    case Role::kExpertUp:
      return expert_type(options, spec, false);
    case Role::kExpertDown:
      return expert_type(options, spec, true);
    case Role::kRouter:
      return DType::F32;
    case Role::kIndexer:
      return DType::BF16;
    case Role::kPleDense:
      return DType::Q8_0;
    default:
      break;
  }
  for (const std::string_view part : {"_inject.", "ssm_alpha.", "ssm_beta.", "ffn_gate_inp_shexp."})
    if (spec.name.find(part) != std::string::npos) return DType::F32;
  if (spec.role == Role::kHyperConnection) return DType::Q8_0;
  return fits(options.dense, spec) ? options.dense : DType::Q8_0;
}

}  // namespace tandem::bench
