#include "tests/golden_model.h"

#include <cmath>

#include "tests/synthetic_model.h"

namespace tandem::testing {

const std::map<std::string, NpyArray>& tiny_golden() {
  static const auto arrays = load_npz(TANDEM_SOURCE_DIR "/tests/golden/tiny_golden.npz");
  return arrays;
}

namespace {
// The configuration that the arrays were made with (TINY of the reference implementation).
ModelShape golden_shape() {
  ModelShape s;
  s.hidden = 64;
  s.vocab = 97;
  s.layers = 4;
  s.mtp_layers = 1;
  s.max_positions = 1024;
  s.norm_eps = 1e-6F;
  s.is_gdn = {true, true, true, false};
  s.streams = 4;
  s.hc_rank = 24;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = 32;
  s.rope_dims = 8;
  s.rope_theta = 1e4;
  s.indexer_heads = 4;
  s.indexer_dim = 16;
  s.indexer_ratio = 4;
  s.indexer_budget = 16;
  s.gdn_key_heads = 2;
  s.gdn_value_heads = 6;
  s.gdn_dim = 16;
  s.gdn_conv = 4;
  s.experts = 8;
  s.experts_used = 2;
  s.expert_ff = 32;
  s.shared_expert_ff = 32;
  s.ple_layer = 1;
  s.ngram_size = 3;
  s.heads_per_ngram = 4;
  s.ple_row_width = 8;
  s.ple_conv = 4;
  s.ple_eos = 5;
  s.image_token = 5;
  // splitmix64 multipliers for a vocabulary of 97, and the eight primes from 113 on.
  s.ple_multipliers = {3923727992659049ULL, 40654649216656725ULL, 76114243727631751ULL};
  s.ple_vocab_sizes = {113, 127, 131, 137, 139, 149, 151, 157};
  for (std::uint64_t sum = 0; const std::uint64_t size : s.ple_vocab_sizes) {
    s.ple_offsets.push_back(sum);
    sum += size;
  }
  s.ple_rows = static_cast<std::int64_t>(tiny_golden().at("w/per_layer_token_embd.weight").rows());
  return s;
}
}  // namespace

GgufBuilder tiny_golden_model() {
  GgufBuilder builder;
  add_shape_keys(builder, golden_shape());
  builder.add("qwen4exp.vocab_size", std::uint32_t{97});
  for (const auto& [name, array] : tiny_golden()) {
    if (!name.starts_with("w/")) continue;
    std::vector<std::int64_t> ne;
    for (auto it = array.shape.rbegin(); it != array.shape.rend(); ++it) ne.push_back(static_cast<std::int64_t>(*it));
    std::vector<float> values;
    for (const double v : array.values) values.push_back(static_cast<float>(v));
    builder.tensor(name.substr(2), values, ne);
  }
  return builder;
}

::testing::AssertionResult rows_close(ConstRows found, const NpyArray& expected, std::size_t first_row, double relative,
                                      const std::string& what) {
  double worst = 0;
  std::string where;
  for (std::size_t r = 0; r < found.rows; ++r) {
    const double* want = expected.values.data() + (first_row + r) * found.cols;
    double square = 0;
    for (std::size_t c = 0; c < found.cols; ++c) square += want[c] * want[c];
    const double rms = std::sqrt(square / static_cast<double>(found.cols));
    for (std::size_t c = 0; c < found.cols; ++c) {
      const double got = static_cast<double>(found.row(r)[c]);
      const double error = std::fabs(got - want[c]) / std::max(std::fabs(want[c]), rms);
      if (!(error <= worst)) {
        worst = error;
        where = "row " + std::to_string(first_row + r) + " column " + std::to_string(c) + ": " + std::to_string(got) +
                " for " + std::to_string(want[c]);
      }
    }
  }
  if (worst <= relative) return ::testing::AssertionSuccess() << what << ": worst " << worst;
  return ::testing::AssertionFailure() << what << ": error " << worst << " of at most " << relative << " at " << where;
}

}  // namespace tandem::testing
