#include "runtime/plan_model.h"

#include <algorithm>

#include "placement/check.h"
#include "runtime/engine.h"
#include "runtime/expert_blob.h"
#include "runtime/model_tensors.h"
#include "runtime/model_visit.h"
#include "runtime/sequence_state.h"
#include "runtime/workspace.h"

namespace tandem {
namespace {

// The tensors that the model was bound to: the draft block comes from its own file when there is one.
std::vector<SortedTensor> bound_tensors(const Model& model) {
  std::vector<SortedTensor> bound;
  const bool own_file = model.mtp_gguf() != nullptr;
  for (const SortedTensor& entry : sort_tensors(model.gguf(), model.shape)) {
    if (entry.spec && (!entry.spec->mtp || (model.mtp && !own_file))) bound.push_back(entry);
  }
  if (own_file && model.mtp) {
    for (const SortedTensor& entry : sort_tensors(*model.mtp_gguf(), model.shape))
      if (entry.spec && entry.spec->mtp) bound.push_back(entry);
  }
  return bound;
}

std::int64_t packed_size(const SortedTensor& entry) {
  const GgufTensor& tensor = *entry.tensor;
  if (entry.spec->form != TensorForm::kMatrix || !has_tile_layout(tensor.type))
    return static_cast<std::int64_t>(tensor.bytes);
  return static_cast<std::int64_t>(
      packed_bytes(tensor.type, static_cast<std::size_t>(tensor.ne[1]), static_cast<std::size_t>(tensor.ne[0])));
}

void add_packed(const SortedTensor& entry, PlanModel& plan) {
  const std::int64_t bytes = packed_size(entry);
  // Rows of it were copied; nobody reads the rest.
  if (entry.spec->role == TensorRole::kHead && entry.spec->mtp && plan.draft_tokens > 0) return;
  switch (entry.spec->role) {
    case TensorRole::kEmbedding:
    case TensorRole::kNgramTable:
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
    case TensorRole::kExpertDown:
      return;
    case TensorRole::kHead:
      plan.head_packed += bytes;
      return;
    default:
      break;
  }
  (entry.spec->mtp ? plan.draft_packed : plan.dense_packed) += bytes;
  if (!entry.spec->mtp && entry.spec->role == TensorRole::kSharedExpert) plan.shared_packed += bytes;
}

void add_draft_head(const WeightView& output, PlanModel& plan) {
  const auto rows = plan.draft_tokens > 0 ? static_cast<std::size_t>(plan.draft_tokens) : output.rows;
  const auto raw = static_cast<std::int64_t>(rows * output.row_size());
  plan.draft_head_packed =
      has_tile_layout(output.type) ? static_cast<std::int64_t>(packed_bytes(output.type, rows, output.cols)) : raw;
  if (plan.draft_tokens > 0) plan.draft_head_rows = raw;
}

std::int64_t blob_bytes(const ExpertBank& bank) {
  if (ExpertBlobLayout::possible(bank)) return static_cast<std::int64_t>(ExpertBlobLayout::of(bank).bytes);
  return static_cast<std::int64_t>(bank.gate.bytes() + bank.up.bytes() + bank.down.bytes());
}

// The banks of a census in the order of the model's: cut, or filled up with uniform ones.
RouteShares fit_banks(const RouteShares& shares, int banks) {
  RouteShares fitted = uniform_shares(banks, shares.experts, shares.used);
  const auto common = static_cast<std::size_t>(std::min(banks, shares.banks) * shares.experts);
  std::copy_n(shares.share.begin(), common, fitted.share.begin());
  return fitted;
}

}  // namespace

PlanModel plan_model(const Model& model, std::int64_t prefill_rows, std::int64_t draft_tokens) {
  PlanModel plan;
  plan.draft_tokens = model.mtp ? draft_tokens : 0;
  plan.name = model.gguf().name();
  plan.shape = model.shape;
  const std::vector<SortedTensor> tensors = bound_tensors(model);
  plan.weights = weight_bytes(tensors);
  for (const SortedTensor& entry : tensors) add_packed(entry, plan);
  if (model.mtp) add_draft_head(model.mtp->output, plan);
  for_each_bank(model, [&](const ExpertBank& bank) {
    plan.expert_bytes.push_back(blob_bytes(bank));
    const auto all = static_cast<double>(bank.gate.bytes() + bank.up.bytes() + bank.down.bytes());
    auto& types = plan.expert_types.emplace_back();
    for (const WeightView* view : {&bank.gate, &bank.up, &bank.down})
      types.push_back({std::string(dtype_name(view->type)), static_cast<double>(view->bytes()) / all});
  });
  const auto window = static_cast<std::int64_t>(kMaxWindow);
  plan.prefill_rows = std::max(prefill_rows, window);
  const auto bytes = [&](std::int64_t rows, std::int64_t logit_rows) {
    return workspace_bytes(model.shape, rows, model.shape.max_positions, logit_rows);
  };
  plan.workspace = bytes(plan.prefill_rows, window);
  plan.short_workspace = bytes(kShortRows, window);
  plan.long_workspace = bytes(plan.prefill_rows, 0);
  return plan;
}

RouteShares plan_shares(const Policy& policy, const Model& model) {
  const ModelShape& shape = model.shape;
  const int banks = shape.layers + (model.mtp ? 1 : 0);
  std::vector<Census> files;
  files.reserve(policy.census.size());
  for (const Policy::CensusSource& source : policy.census) {
    Census census = load_census(source.file);
    const bool banks_fit = census.banks == shape.layers || census.banks == shape.layers + 1;
    if (!banks_fit || census.experts != shape.experts || census.used != shape.experts_used) {
      fail_input(
          "{}: expected a census of {} layers, {} experts and {} used, as {} has, found {}, {} and {}. Fix: take one "
          "of "
          "this model with `tandem profile`",
          source.file.string(), shape.layers, shape.experts, shape.experts_used, model.gguf().name(), census.banks,
          census.experts, census.used);
    }
    if (!source.domain.empty() && census.domains.count(source.domain) == 0) {
      fail_input(
          "{}: expected the domain \"{}\" that the policy names, found none. Fix: `tandem census show` lists its "
          "domains",
          source.file.string(), source.domain);
    }
    files.push_back(std::move(census));
  }
  if (files.empty()) return uniform_shares(banks, shape.experts, shape.experts_used);
  // Each part by itself, since one may lack the draft block's bank; then their weighted mean.
  RouteShares mean = uniform_shares(banks, shape.experts, shape.experts_used);
  std::fill(mean.share.begin(), mean.share.end(), 0.0);
  double weights = 0;
  for (const Policy::CensusSource& source : policy.census) weights += source.weight;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const CensusPart part{&files[i], policy.census[i].domain, 1.0};
    const RouteShares shares = fit_banks(mix_shares(std::span(&part, 1)), banks);
    for (std::size_t at = 0; at < mean.share.size(); ++at)
      mean.share[at] += shares.share[at] * policy.census[i].weight / weights;
  }
  return mean;
}

StateLayout plan_state(const Policy& policy, const ModelShape& shape) {
  StateLayout layout;
  layout.context = policy.context.value_or(std::min<std::int64_t>(kDefaultContext, shape.max_positions));
  if (layout.context < 1 || layout.context > shape.max_positions) {
    fail_input(
        "context: expected 1 to {0} (the trained context), found {1}. Fix: --context {0} where the command has it, or "
        "another context in {2}",
        shape.max_positions, layout.context, policy.file.empty() ? "the policy" : policy.file.string());
  }
  layout.kv_bits = policy.kv == KvFormat::kF32 ? 32 : 16;
  layout.window = static_cast<int>(kMaxWindow);
  return layout;
}

}  // namespace tandem
