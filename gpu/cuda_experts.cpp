// CudaOps: the router, and experts on the card and beside it.
#include <algorithm>
#include <utility>

#include "gpu/cuda_ops.h"
#include "gpu/kernels/route.h"
#include "gpu/kernels/router.h"
#include "runtime/expert_store.h"

namespace tandem {

std::int64_t CudaOps::route(ConstRows logits, Routes routes) {
  gpu::route(logits, routes.used, routes.expert, routes.weight, next_flag(), stream_);
  return -1;
}

const CudaOps::BankRef& CudaOps::bank_of(const ExpertBank& bank) const {
  const auto found = banks_.find(bank.gate.data);
  CHECK(found != banks_.end() && found->second.store() != nullptr, "experts of {} are not loaded", bank.gate.name);
  return found->second;
}

RouteSplit CudaOps::split_routes(const ExpertBank& bank, const ExpertStore*, int, const Routes& routes,
                                 const Routes& hits, const Routes& misses, std::int32_t* log) {
  const BankRef& ref = bank_of(bank);
  if (streams(ref)) {  // all of them are met on the card
    const std::size_t count = routes.rows * routes.used;
    memory_.copy(hits.expert, routes.expert, count * sizeof(std::int32_t));
    memory_.fetch(log, routes.expert, count * sizeof(std::int32_t));
    return {.hits = true, .misses = false};
  }
  gpu::split_routes(routes.expert, routes.rows * routes.used, ref.slots(), hits.expert, misses.expert, log, stream_);
  return {.hits = true, .misses = !ref.experts->all_on_card};
}

gpu::MeetingArgs CudaOps::open_meeting(const ExpertBank& bank, const Routes& misses, std::size_t hidden,
                                       const std::int32_t* asked) {
  const auto index = static_cast<std::uint32_t>(now_.meetings.size());
  const Handoff::Meeting meeting{&bank, misses.rows, misses.used, hidden, hidden, index, asked};
  now_.meetings.push_back(meeting);
  started_ = {meeting, misses.expert};
  return handoff_.args(meeting, misses.expert, &numbers_.data()->first_meeting);
}

std::int64_t CudaOps::router(std::span<const Product> products, const Activation& a, const RoutePlan& plan,
                             RouteSplit& split) {
  const std::size_t rows = a.x.rows, pairs = rows * plan.routes.used;
  const DType type = products[0].w.type;
  const auto fits = [&](const Product& product) {
    return product.w.type == type && product.w.cols == a.x.cols && product.y.cols == product.w.rows;
  };
  // Not in a part of a long pass, however short: its experts are met together.
  if (pass_rows_ > gpu::kRouterRows || pairs > std::min(expert_scratch_.pairs, kMaxPairs) || products.size() > 2 ||
      dtype_info(type).kind != DTypeKind::kFloat || !std::all_of(products.begin(), products.end(), fits))
    return Ops::router(products, a, plan, split);
  const BankRef& ref = bank_of(*plan.bank);
  const auto product = [&](std::size_t i) -> gpu::FloatMatmul {
    const WeightView& w = products[i].w;
    return {weights_.data(w), w.rows, w.scale, products[i].y};
  };
  gpu::RouterArgs args;
  args.type = float_type(type);
  args.router = product(0);
  if (products.size() > 1) args.other = product(1);
  args.x = a.x;
  args.used = plan.routes.used;
  args.slots = ref.slots();
  args.expert = plan.routes.expert;
  args.weight = plan.routes.weight;
  args.bad_row = next_flag();
  args.hit = plan.hits.expert;
  args.miss = plan.misses.expert;
  args.log = plan.log;
  args.jobs = expert_scratch_.jobs;
  args.job_count = expert_scratch_.job_count;
  args.bad_pair = expert_scratch_.bad;
  args.arrived = arrived_.data();
  split = {.hits = true, .misses = !ref.experts->all_on_card};
  if (split.misses) {
    args.meeting = open_meeting(*plan.bank, plan.misses, a.x.cols, plan.log);
    args.quantized = {a.q.q, a.q.d, a.q.s, a.x.cols};
  }
  if (split.misses && recording_ && fetching_ && ref.experts->fetches) {
    args.fetched = fetch_.fetched(args.meeting.index);
    name_experts(ref, a, args.used);
  }
  gpu::router(args, stream_);
  listed_ = plan.hits.expert;
  return -1;
}

void CudaOps::name_experts(const BankRef& ref, const Activation& a, std::size_t used) {
  const Experts& experts = *ref.experts;
  const auto index = static_cast<std::uint32_t>(now_.meetings.size());  // of the next layer's meeting
  now_.fetches.resize(index + 1);
  const auto next = static_cast<std::size_t>(ref.bank) + 1;
  if (next >= experts.routers.size()) return;
  const WeightView& router = experts.routers[next];
  const ExpertBlobLayout* const layout = ref.store()->layout(static_cast<int>(next));
  if (layout == nullptr || dtype_info(router.type).kind != DTypeKind::kFloat || router.cols != a.x.cols) return;
  gpu::NameArgs args = fetch_.names(index, a.x.rows, router.rows, &numbers_.data()->first_meeting);
  args.type = float_type(router.type);
  args.router.weights = weights_.data(router), args.router.n = router.rows, args.router.scale = router.scale;
  args.x = a.x;
  args.used = used;
  args.slots = experts.slots.data() + next * router.rows;
  gpu::name_experts(args, sides_.fork(kNames));
  now_.fetches[index] = {experts.ram.data() + next * router.rows, layout->bytes};
}

void CudaOps::expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) {
  const BankRef& ref = bank_of(bank);
  CHECK(bank.gate_scale == nullptr && bank.up_scale == nullptr && bank.down_scale == nullptr, "{}: a scale per expert",
        bank.gate.name);
  if (routes.rows > kMaxWindow && can_gemm_experts(*ref.store()->layout(ref.bank))) {
    long_experts(ref, bank, routes, a, y);
    if (check_) now_.samples.push_back(check_->take(bank, layer_, routes, a.q, y));
    return;
  }
  ExpertScales scales;
  scales.gate_all = bank.gate.scale, scales.up_all = bank.up.scale, scales.down_all = bank.down.scale;
  launch_expert_ffn(*ref.store()->layout(ref.bank), scales, {routes.expert, routes.rows, routes.used, ref.slots()},
                    {a.q.q, a.q.d, a.q.s}, y.data, y.stride, expert_scratch_, stream_, listed_ == routes.expert);
  listed_ = nullptr;
  if (check_) now_.samples.push_back(check_->take(bank, layer_, routes, a.q, y));
}

void CudaOps::start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                            const SharedExpert& shared) {
  CHECK(y.stride == y.cols && y.cols == a.x.cols, "results of {} values, {} apart, of rows of {}", y.cols, y.stride,
        a.x.cols);
  // Before the experts on the card: beside them, a block of this kernel finds no room until theirs begin to end, and
  // the crew starts that much later (docs/decisions.md).
  if (started_.misses != routes.expert)
    gpu::publish(open_meeting(bank, routes, a.x.cols), {a.q.q, a.q.d, a.q.s, a.x.cols}, stream_);
  if (shared.weights != nullptr) ffn(*shared.weights, a, shared.y);
}

void CudaOps::finish_experts() {
  if (!recording_) serve(started_.meeting);  // a pass that is recorded is served when it runs
  const gpu::MeetingArgs args = handoff_.args(started_.meeting, started_.misses, &numbers_.data()->first_meeting);
  sides_.join(kNames);
  sides_.join(kFfn);  // so that the combination follows the wait alone, and may start early
  gpu::await(args, stream_);
  crew_rows_ = {args.miss, args.memory.y};  // for combine
  started_.misses = nullptr;
}

void CudaOps::ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  launch_ffn(tiles(weights.gate), tiles(weights.up), tiles(weights.down), {a.q.q, a.q.d, a.q.s}, y.rows, y.data,
             y.stride, expert_scratch_, stream_);
}

bool CudaOps::start_ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  launch_ffn(tiles(weights.gate), tiles(weights.up), tiles(weights.down), {a.q.q, a.q.d, a.q.s}, y.rows, y.data,
             y.stride, ffn_scratch_, sides_.fork(kFfn));
  return true;
}

}  // namespace tandem
