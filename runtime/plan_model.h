// From an opened model to the planner's terms. Only headers are read: no weight of the file is touched.
#pragma once

#include <cstdint>

#include "placement/plan.h"
#include "runtime/model.h"

namespace tandem {

// prefill_rows: rows of the largest pass (--prefill-chunk). draft_tokens: what the draft head chooses among, 0: all
// (draft_vocabulary_size).
PlanModel plan_model(const Model& model, std::int64_t prefill_rows = 512, std::int64_t draft_tokens = 0);

// The policy's census files as shares of this model's banks. A census without the draft block's bank leaves that one
// uniform, one of a model with a draft block may serve a model without. Without census files: uniform. Throws
// InputError when a file cannot be read or is of another number of layers, experts or used experts.
RouteShares plan_shares(const Policy& policy, const Model& model);

// Context and format of the caches by the policy: its context, or the engine's default. Throws InputError when the
// model was not trained for it.
StateLayout plan_state(const Policy& policy, const ModelShape& shape);

}  // namespace tandem
