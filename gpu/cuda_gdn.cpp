// CudaOps: what a GDN layer does beside its products.
#include "gpu/cuda_ops.h"
#include "gpu/kernels/elementwise.h"
#include "gpu/kernels/gdn_edges.h"
#include "gpu/kernels/gdn_scan.h"
#include "gpu/kernels/gdn_step.h"
#include "gpu/kernels/norms.h"
#include "placement/cost_model.h"
#include "runtime/sequence_state.h"

namespace tandem {

namespace {

static_assert(gpu::kStepRows == kGdnStepRows);

gpu::DeviceGdnInput on_card(const GdnInput& in) {
  gpu::DeviceGdnInput args;
  args.key_heads = in.key_heads;
  args.dim = in.dim;
  args.alpha = in.alpha;
  args.beta = in.beta;
  args.dt_bias = in.dt_bias;
  args.a = in.a;
  args.qkv = in.qkv;
  args.taps = in.taps;
  args.history = {in.history.rows, in.history.depth, in.history.width};
  args.window = in.log ? in.history.window : nullptr;
  args.eps = in.eps;
  args.scale = in.scale;
  args.conv = in.conv;
  args.q = in.q;
  args.k = in.k;
  return args;
}

// replay_count: null where an earlier part has folded the rows in.
gpu::DeviceGdnScan on_card(const GdnScan& scan, DeviceCount replay_count) {
  const auto log = [](ConstRows rows) { return ConstDeviceRows(rows.data, kMaxWindow, rows.cols, rows.stride); };
  gpu::DeviceGdnScan args;
  args.key_heads = scan.key_heads;
  args.value_heads = scan.value_heads;
  args.dim = scan.dim;
  args.state = scan.state;
  if (replay_count != nullptr) {
    args.replay_k = log(scan.replay_k);
    args.replay_u = log(scan.replay_u);
    args.replay_decay = log(scan.replay_decay);
    args.replay_count = replay_count;
  }
  args.q = scan.q;
  args.k = scan.k;
  args.v = scan.v;
  args.decay = scan.decay;
  args.beta = scan.beta;
  args.out = scan.out;
  args.log_u = scan.log_u;
  return args;
}

gpu::DeviceGdnResult on_card(const GdnResult& r) {
  gpu::DeviceGdnResult args;
  args.dim = r.dim;
  args.o = r.o;
  args.z = r.z;
  args.norm = r.norm;
  args.eps = r.eps;
  args.q_codes = r.q.q;
  args.q_scales = r.q.d;
  args.q_sums = r.q.s;
  args.k = r.k;
  args.decay = r.decay;
  args.log_k = r.log_k;
  args.log_decay = r.log_decay;
  return args;
}

}  // namespace

void CudaOps::gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) {
  gpu::gdn_gates(alpha, beta, dt_bias, a, stream_);
}
void CudaOps::gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) {
  gpu::gdn_output(o, z, norm, dim, eps, r, stream_);
}

DeviceCount CudaOps::replay_count() const {
  return part_first_ == 0 ? &numbers_.data()->replay : nullptr;
}

void CudaOps::gdn_scan(const GdnScan& scan) {
  gpu::gdn_scan(on_card(scan, replay_count()), stream_);
}
void CudaOps::gdn_input(const GdnInput& in) {
  if (in.dim > gpu::kMaxEdgeDim || in.taps.rows > gpu::kMaxEdgeTaps) return Ops::gdn_input(in);
  gpu::gdn_input(on_card(in), stream_);
}
std::int64_t CudaOps::gdn_result(const GdnResult& r) {
  if (r.dim > gpu::kMaxEdgeDim || (r.q && r.dim % 32 != 0)) return Ops::gdn_result(r);
  gpu::DeviceGdnResult args = on_card(r);
  if (r.q) args.bad = next_flag();
  gpu::gdn_result(args, stream_);
  return -1;
}

// Before passes, as reserve_hc.
void CudaOps::reserve_gdn(std::size_t key_heads) {
  if (gdn_arrived_.size() >= key_heads) return;
  forget_records();
  gdn_arrived_ = {memory_, key_heads};
  memory_.zero(gdn_arrived_.data(), gdn_arrived_.bytes());
}

std::int64_t CudaOps::gdn_step(const GdnStep& step) {
  gpu::DeviceGdnStep args;
  args.in = on_card(step.input);
  args.scan = on_card(step.scan, replay_count());
  args.result = on_card(step.result);
  args.arrived = gdn_arrived_.data();
  if (!gpu::can_step(args) || step.scan.key_heads > gdn_arrived_.size()) return Ops::gdn_step(step);
  stage("delta rule", step.layer);
  stage_ = "gdn output";  // where its bad values are found
  if (step.result.q) args.result.bad = next_flag();
  gpu::gdn_step(args, stream_);
  return -1;
}

}  // namespace tandem
