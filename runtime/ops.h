// Every operation of the model, one pure virtual each. What an operation computes, to the bit, is docs/numerics.md
// (R1 to R9); the declarations below give formula, shapes and requirements. All operations are row pure: the result
// for a row depends on that row and on the state left by earlier tokens, never on how many rows are run together.
//
// Implementations: cpu/ReferenceOps (scalar, reads like the contract), cpu/CpuOps (fast), gpu/GpuOps.
// REQUIRES, everywhere: outputs do not overlap inputs unless said otherwise; row counts of all arguments agree.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "placement/adapt.h"
#include "placement/fetch_ahead.h"
#include "placement/hardware.h"
#include "placement/plan.h"
#include "runtime/function_ref.h"
#include "runtime/memory.h"
#include "runtime/model.h"
#include "runtime/sampler.h"
#include "runtime/tensor.h"

namespace tandem {

// Activations quantised by R2 in blocks of 32: x ~ d * q, s = sum of q over each half block of 16.
struct QuantRows {
  std::int8_t* q = nullptr;   // [rows, cols]
  float* d = nullptr;         // [rows, cols / 32]
  std::int32_t* s = nullptr;  // [rows, cols / 16]
  std::size_t rows = 0;
  std::size_t cols = 0;

  explicit operator bool() const { return q != nullptr; }
  const std::int8_t* q_row(std::size_t r) const { return q + r * cols; }
  const float* d_row(std::size_t r) const { return d + r * (cols / 32); }
  const std::int32_t* s_row(std::size_t r) const { return s + r * (cols / 16); }
  QuantRows slice(std::size_t first, std::size_t count) const {
    return {q + first * cols, d + first * (cols / 32), s + first * (cols / 16), count, cols};
  }
};

// Input of a matrix product: the float rows, and their quantised form where any consumer is a block format.
struct Activation {
  ConstRows x;
  QuantRows q;

  Activation row(std::size_t r) const { return {x.slice(r, 1), q ? q.slice(r, 1) : QuantRows{}}; }
};

// KV storage of one attention layer: position-major rows of kv_heads * head_dim values.
enum class KvType : std::uint8_t { kF32, kF16 };
struct KvView {
  KvType type = KvType::kF16;
  void* k = nullptr;
  void* v = nullptr;
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t capacity = 0;  // positions
  std::size_t width() const { return kv_heads * head_dim; }
};

// Cosines and sines of the window's positions: [rows, rope_dims / 2] each, computed in double (R6).
struct RopeView {
  ConstRows cos, sin;
};

// The positions that one query row attends to, ascending: row r holds count[r] entries.
struct AttendLists {
  std::int32_t* positions = nullptr;  // [rows, stride]
  std::int32_t* count = nullptr;      // [rows]
  std::size_t rows = 0;
  std::size_t stride = 0;
};

// Router result: experts of each row by falling probability, weights that sum to 1.
struct Routes {
  std::int32_t* expert = nullptr;  // [rows, used]
  float* weight = nullptr;         // [rows, used]
  std::size_t rows = 0;
  std::size_t used = 0;
};

struct RouteSplit {
  bool hits = false, misses = false;
};

// One Gated DeltaNet layer over a window (see Ops::gdn_scan).
struct GdnScan {
  std::size_t key_heads = 0, value_heads = 0, dim = 0;
  float* state = nullptr;  // [value_heads, dim (key), dim (value)], updated in place
  // Rows accepted from the previous window, folded into the state first: k [n, key_heads*dim], u [n, value_heads*dim],
  // decay [n, value_heads].
  ConstRows replay_k, replay_u, replay_decay;
  ConstRows q, k;         // [w, key_heads*dim], normalised
  ConstRows v;            // [w, value_heads*dim]
  ConstRows decay, beta;  // [w, value_heads]
  Rows out;               // [w, value_heads*dim]
  Rows log_u;             // [w, value_heads*dim] or empty. Given: the new rows are only logged, `state` keeps the rows
                          // of the replay. Empty: the state advances over the new rows.
};

// READ of a hyper-connection module (spec 2.2), and before it the WRITE of the block before, where one waits (see
// Ops::hc_read).
struct HcRead {
  int streams = 0;
  float eps = 0;
  const float* gamma = nullptr;        // [D]
  const HcWeights* weights = nullptr;  // down, up and, where the module has it, inject
  Rows x;                              // [w, D]
  ConstRows written, written_inject;   // [w, d] and [w, streams] of the WRITE; empty: none. The latter may be `inject`
  Rows normed, low, gate;  // [w, D], [w, rank], [w, D] on the way; a machine may leave low and gate as they are
  Rows inject;             // [w, streams]; untouched where the module has no inject weights
  Rows mixed;              // [w, d]
  QuantRows normed_q, low_q, mixed_q;  // may all lie in the same memory
};

// Told while weights are packed: bytes done of all.
using LoadProgress = std::function<void(std::size_t done, std::size_t total)>;

// What a GDN layer does between its products and the delta rule (see Ops::gdn_input).
struct GdnInput {
  std::size_t key_heads = 0, dim = 0;
  Rows alpha, beta;  // [w, value_heads]
  const float* dt_bias = nullptr;
  const float* a = nullptr;
  ConstRows qkv, taps;  // [w, C] with C = 2 * key_heads * dim + values, [taps, C]
  HistoryRows history;  // of qkv
  bool log = false;     // qkv becomes the first rows of the open window, too
  float eps = 0, scale = 0;
  Rows conv;  // [w, C]; afterwards only the columns of the values mean something
  Rows q, k;  // [w, key_heads * dim]
};

// What it does after the delta rule (see Ops::gdn_result).
struct GdnResult {
  std::size_t dim = 0;
  Rows o;                       // [w, values], in place
  ConstRows z;                  // [w, values]
  const float* norm = nullptr;  // [dim]
  float eps = 0;
  QuantRows q;             // of o; none: not wanted
  ConstRows k, decay;      // as of GdnScan
  float* log_k = nullptr;  // the rows of k and decay, one after the other; null: no log
  float* log_decay = nullptr;
};

// From an attention layer's products to the KV storage (see Ops::attention_input).
struct AttentionInput {
  std::size_t heads = 0, head_stride = 0, dim = 0;  // of q; k and v have kv.kv_heads heads of dim values, tight
  ConstRows q, k, v;
  const float* q_norm = nullptr;  // [dim]
  const float* k_norm = nullptr;
  float eps = 0;
  RopeView rope;
  KvView kv;
  std::size_t position = 0;  // of the first row
  Rows q_rot;                // [w, heads * dim]
  Rows k_rot;                // [w, kv width]: work memory, means nothing afterwards
};

class ExpertStore;

// The routes of one layer, and where each is met (see Ops::router).
struct RoutePlan {
  const ExpertBank* bank = nullptr;
  const ExpertStore* store = nullptr;
  int index = 0;
  Routes routes, hits, misses;
  std::int32_t* log = nullptr;
};

struct LoadOptions {
  std::optional<ExpertPlacement> placement;  // empty: every expert in RAM
  AdaptSettings adapt;
  FetchAhead fetch_ahead = FetchAhead::kAuto;  // where a machine can
  double fetch_seconds = kFetchSeconds;        // what a copy costs the card
  std::vector<bool> movable;                   // [banks * experts]; empty: all
  Lending lending;                             // of the card's memory that only longer passes than lending.rows need
  bool lock_memory = false;                    // keep the experts in RAM locked
  bool huge_pages = true;
  // A pass of this many rows or more has the experts that are off the card sent to it rather than computed by the crew,
  // where a machine has both ways (docs/gpu.md). An engine takes it from the cost model where the
  // rates are known; this is where the two met on the H200 machine (docs/performance.md).
  std::size_t stream_rows = 256;
  std::size_t part_rows = 1024;  // a longer pass runs in parts (runtime/workspace.h); a multiple of 16
  bool ngram_in_ram = false;     // read the n-gram table ahead; else row by row, when it is needed
  LoadProgress progress;
};

// A model in a machine's own form, kept while this lives. The model must outlive it, and the machine too.
struct LoadedModel {
  std::shared_ptr<void> dense;           // may be null: read from the file
  std::shared_ptr<ExpertStore> experts;  // null: the machine reads experts from the file
};

// A block of the indexer: `ratio` positions that share one pooled key (see Ops::index_blocks).
struct IndexBlocks {
  HistoryRows raw;  // keys before this pass; its window holds `pending` rows
  std::size_t pending = 0;
  ConstRows keys;  // [w, dim] keys of this pass
  std::size_t position = 0, ratio = 1;
  const float* gamma = nullptr;  // [dim]
  float eps = 0;
  RopeView rope;            // of the first positions of the blocks from position / ratio on: [w / ratio + 1, half]
  float* pooled = nullptr;  // [context / ratio, dim]
};

// What changes from pass to pass while all addresses and shapes stay. Operations are told the same numbers in their
// arguments; a machine that records a pass once and runs it again takes them from here.
struct PassNumbers {
  std::int32_t position = 0;         // of the first row
  std::int32_t replay = 0;           // rows of the last window that gdn_scan folds in
  std::int32_t pending = 0;          // rows of the open window before this pass (chained drafts)
  TokenChoice choice;                // see Ops::choose
  std::int32_t choice_position = 0;  // of the token chosen from the first row of logits
};

// What the host makes while a pass runs already: writes staging areas. Empty: nothing.
using LateInput = std::optional<FunctionRef<void()>>;

// A pass that differs from another of the same key only in PassNumbers, and in what its staging areas hold.
struct PassKey {
  std::uint64_t sequence = 0, work = 0, code = 0;  // identities: SequenceState, Workspace, who runs it
  std::uint32_t rows = 0;
  std::uint32_t kind = 0;  // everything else that shapes it, as bits
  bool once = false;       // it looks at results while it runs, so it cannot be recorded
  auto operator<=>(const PassKey&) const = default;
};

// A value that is no number, met by a pass that could not say so at once.
struct BadValue {
  std::string stage;
  int layer = -1;
  std::size_t row = 0;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string describe() const = 0;  // machine, instruction set, workers
  // Things that a user should know about this machine: cause, cost, cure.
  virtual std::vector<std::string> warnings() const { return {}; }

  // Puts the model's matrices into this machine's own form (packs, uploads). Products work without it, from the mapped
  // file, only slower. A model that is loaded already is shared; its options are those of the first load.
  virtual LoadedModel load(const Model& model, const LoadOptions& options);

  // The card that this machine is; none: the CPU, which may play one.
  virtual std::optional<Hardware::Gpu> card() const { return {}; }
  // Bytes of the card's memory that this program's part takes now; 0: no card.
  virtual std::size_t card_bytes() const { return 0; }
  // Experts that were computed twice, on the card and by the CPU, and compared (--verify-experts).
  virtual std::uint64_t experts_compared() const { return 0; }
  // How experts were fetched ahead (placement/fetch_ahead.h); null without a card.
  virtual const FetchJudge* fetching() const { return nullptr; }
  // Where the arguments of the operations lie.
  virtual MachineMemory& memory() { return host_memory(); }
  // A pass: `body` calls the operations, in the same order with the same addresses for the same key; a machine may run
  // it now, or record it and run the record again. Returns when all results are there. The host's side of the pass (the
  // staging areas, bookkeeping) stays outside of it, but for `late`: it is called once in every pass, at the latest
  // when what follows await_late() in the body needs it, and operations before that may run meanwhile. Returns a value
  // that is no number, unless an operation has.
  virtual std::optional<BadValue> run_pass(const PassKey& key, const PassNumbers& numbers, const LateInput& late,
                                           FunctionRef<void()> body) {
    (void)key, (void)numbers;
    if (late) (*late)();
    body();
    return {};
  }
  // At most once in a body, and only of a pass that has a LateInput: what the host makes late is there from here on.
  virtual void await_late() {}
  // What follows is about the rows of the pass from `first` on, until the next call; 0 at the start. Operations number
  // rows, and positions, from there.
  virtual void begin_part(std::size_t first) { (void)first; }
  // body(0) .. body(n - 1) on the host, in any order, side by side where the machine has workers; outside of a pass, or
  // within its late input.
  virtual void host_loop(std::size_t n, const std::function<void(std::size_t)>& body) {
    for (std::size_t i = 0; i < n; ++i) body(i);
  }
  // Names what follows, for BadValue and for stage_times.
  virtual void stage(std::string_view name, int layer) { (void)name, (void)layer; }
  // Where the time of passes goes on a machine that runs them by itself (the CPU writes a timeline instead): seconds of
  // each stage since time_stages(true), on the machine's clock. Passes take a little longer meanwhile.
  struct StageTime {
    std::string stage;
    double seconds = 0;
    std::uint64_t count = 0;
  };
  virtual void time_stages(bool on) { (void)on; }
  virtual std::vector<StageTime> stage_times() const { return {}; }

  // The experts of a model that another machine has loaded: expert_ffn finds those in RAM there.
  virtual void share_experts(const Model& model, const std::shared_ptr<ExpertStore>& store) {
    (void)model, (void)store;
  }

  // ---- products ---------------------------------------------------------------------------------------------------
  // R2. Returns the first row that holds a non-finite value, or -1. A block whose 127/amax overflows (amax below
  // 3.8e-37) is written as zero. REQUIRES cols % 32 == 0.
  virtual std::int64_t quantize(ConstRows x, QuantRows q) = 0;
  // y = (W x) * W.scale, x [w, K], y [w, N]. Block formats: R3 with R4 over a.q. Float formats: float dot of a.x
  // (R4 for floats: 32 lanes by index mod 32, fma in ascending order inside a segment of 256, tree over segments,
  // tree over lanes).
  virtual void matmul(const WeightView& w, const Activation& a, Rows y) = 0;
  // Several matrices that meet the same input: y_i = (W_i a) * W_i.scale. A machine may run them as one.
  struct Product {
    const WeightView& w;
    Rows y;
  };
  virtual void matmuls(std::span<const Product> products, const Activation& a) {
    for (const Product& product : products) matmul(product.w, a, product.y);
  }
  void matmuls(std::initializer_list<Product> products, const Activation& a) {
    matmuls(std::span(products.begin(), products.size()), a);
  }

  // Token and logit of chosen[r] = choose_token(logits row r, choice, position + r, ids) of runtime/sampler.h; `ids`
  // null or of as many tokens as there are logits in a row.
  // REQUIRES 1 to kMaxWindow rows; in a machine's own memory a flag that says so replaces the error for bad logits.
  virtual void choose(ConstRows logits, const TokenChoice& choice, std::size_t position, const TokenId* ids,
                      Chosen* chosen);
  // Of chosen[r]: top = the largest logit of row r (never -0), sum = sum_i exp((logit_i - top) *
  // softmax_scale(temperature)), by R4 for floats with ones as the other factor. A machine with memory of its own takes
  // the temperature from the pass's numbers. Without meaning where choose finds bad logits.
  virtual void softmax_sum(ConstRows logits, float temperature, Chosen* chosen) = 0;

  // ---- norms ------------------------------------------------------------------------------------------------------
  // Per group g of n = cols / groups values: y = (x * (1 / sqrt(sum x^2 / n + eps))) * gamma[column].
  // gamma has cols values. y may be x.
  virtual void rms_norm(ConstRows x, std::size_t groups, const float* gamma, float eps, Rows y) = 0;
  // Per head of `dim` values: y = (x * (1 / sqrt(sum x^2 + eps))) * scale. y may be x.
  virtual void l2_norm(ConstRows x, std::size_t dim, float eps, float scale, Rows y) = 0;
  // Per head: RMS norm over dim values with the shared gamma[dim], then rotation of the first 2 * rope.cos.cols values
  // in pairs (i, i + half): x_i' = fma(-x_j, sin, x_i cos), x_j' = fma(x_i, sin, x_j cos). The head h of a row of x
  // starts at h * head_stride. y [w, heads * dim].
  virtual void norm_rope(ConstRows x, std::size_t heads, std::size_t dim, std::size_t head_stride, const float* gamma,
                         float eps, const RopeView& rope, Rows y) = 0;

  // ---- hyper-connections (spec 2) -----------------------------------------------------------------------------------
  // lo = silu(lo / streams), in place.
  virtual void hc_low(Rows lo, int streams) = 0;
  // mixed[j] = (sum_s sigmoid(gate[s,j]) * normed[s,j]) / streams, fma in stream order from 0. normed, gate [w, D].
  virtual void hc_mix(ConstRows normed, ConstRows gate, int streams, Rows mixed) = 0;
  // X[s,j] = fma(2 * sigmoid(inject[s] / streams), y[j], X[s,j]). X [w, D], y [w, d], inject [w, streams].
  virtual void hc_write(Rows x, ConstRows y, ConstRows inject, int streams) = 0;
  // hc_write(x, written, written_inject) where there is one; normed = rms_norm(x) by streams; low = hc_low(down
  // normed); inject = inject normed; gate = up low; mixed = hc_mix(normed, gate). Quantises what meets block formats.
  // Returns the first row that holds a non-finite value where it is quantised, or -1. The machine may have quantised
  // `mixed` as well when this returns: then the next call of quantize, if it is that of `mixed` into `mixed_q`, finds
  // it done. REQUIRES that `mixed` is unchanged until then.
  virtual std::int64_t hc_read(const HcRead& read);

  // ---- convolution, GDN (spec 4) ------------------------------------------------------------------------------------
  // z = history ++ x; y[t,c] = silu(sum_k weights[k,c] * z[t + k*dilation, c]), fma from 0, oldest tap first.
  // history [(taps-1)*dilation, C], weights [taps, C].
  virtual void causal_conv(ConstRows history, ConstRows x, ConstRows weights, std::size_t dilation, Rows y) = 0;
  // decay = exp(a * softplus(alpha + dt_bias)), beta = sigmoid(beta_logit), per value head; in place.
  virtual void gdn_gates(Rows alpha, Rows beta, const float* dt_bias, const float* a) = 0;
  // Per value head h with key head h mod key_heads, for each row in order (sequential in every mode, R7):
  //   S[i,j] = decay * S[i,j];  u[j] = beta * (v[j] - sum_i S[i,j] k[i]);  S[i,j] = fma(k[i], u[j], S[i,j]);
  //   out[j] = sum_i S[i,j] q[i]
  // Sums over i: fma in ascending order inside segments of 32, tree over segments. Replayed rows do the first and the
  // third step with their logged u.
  virtual void gdn_scan(const GdnScan& scan) = 0;
  // r = (o * (1 / sqrt(mean o^2 + eps))) * norm[dim] * sigmoid(z), per head. r may be o.
  virtual void gdn_output(ConstRows o, ConstRows z, const float* norm, std::size_t dim, float eps, Rows r) = 0;
  // gdn_gates; causal_conv of qkv with dilation 1; l2_norm of its first key_heads heads, times scale, to q, and of the
  // next ones to k; the log. A machine may do it all at once.
  virtual void gdn_input(const GdnInput& in);
  // The logs; gdn_output in place; quantize. Returns what quantize does, -1 without q.
  virtual std::int64_t gdn_result(const GdnResult& result);
  // gdn_input, gdn_scan, gdn_result. A machine may do all at once: of what lies between, the logs, the state, result.o
  // and its quantised form mean something afterwards, nothing else. Returns what gdn_result does.
  struct GdnStep {
    GdnInput input;
    GdnScan scan;
    GdnResult result;
    int layer = -1;  // for the stages "delta rule" and "gdn output", which begin within
  };
  virtual std::int64_t gdn_step(const GdnStep& step);

  // ---- QSA attention (spec 5) ---------------------------------------------------------------------------------------
  // Stores the window's keys and values at positions position .. position + w - 1.
  virtual void kv_store(const KvView& kv, std::size_t position, ConstRows k, ConstRows v) = 0;
  // norm_rope of q and of k, kv_store of k and v.
  virtual void attention_input(const AttentionInput& in);
  // y[b] = (x[b*ratio] + x[b*ratio + 1] + ...) / ratio. y [blocks, dim].
  virtual void mean_pool(ConstRows x, std::size_t ratio, Rows y) = 0;
  // Row r sees positions 0 .. position + r. With nb complete blocks of `ratio` among them: if nb <= blocks every
  // position; else the `blocks` blocks of the highest score sum_h relu(q_h . pooled_b) (heads in order; ties to the
  // lower block), and the incomplete tail. REQUIRES finite scores (an error otherwise).
  virtual void select_positions(ConstRows q, std::size_t heads, ConstRows pooled, std::size_t position,
                                std::size_t ratio, std::size_t blocks, AttendLists lists) = 0;
  // For every block that the pass completes (its last position is one of the pass's): pooled[block] = norm_rope of the
  // mean of its raw keys, one head of dim values.
  virtual void index_blocks(const IndexBlocks& blocks) = 0;
  // Row r attends to everything: positions 0 .. position + r.
  virtual void all_positions(std::size_t position, AttendLists lists) = 0;
  // Per row and head (kv head = h / (heads / kv_heads)) over the listed positions p_0 < p_1 < ...:
  //   s_i = (q . k_i) * scale; m = max s_i; e_i = exp(s_i - m); o = (sum e_i v_i) / (sum e_i)
  // both sums sequential inside segments of 64 list entries, tree over segments; o *= sigmoid(gate_h).
  // gate: head h of row r starts at h * gate_stride.
  virtual void attention(ConstRows q, const KvView& kv, const AttendLists& lists, float scale, ConstRows gate,
                         std::size_t gate_stride, Rows out) = 0;

  // ---- experts (spec 6, R5) -----------------------------------------------------------------------------------------
  // The `used` experts of the highest logits (ties to the lower index), weight = e_k / sum e with e = exp(logit - max),
  // summed in rank order. Returns the first row with a NaN logit, or -1.
  virtual std::int64_t route(ConstRows logits, Routes routes) = 0;
  // `bank` is number `index` of the store's. Puts each route where it is met: hits and misses get the ids that are
  // theirs and -1 elsewhere; all ids go to `log`, staging memory of [w, used]; then what store->tail_skip() drops is -1
  // in `routes` (a machine with memory of its own drops nothing, and the engine says so). Without a store all are hits.
  // Returns whether there may be any.
  virtual RouteSplit split_routes(const ExpertBank& bank, const ExpertStore* store, int index, const Routes& routes,
                                  const Routes& hits, const Routes& misses, std::int32_t* log);
  // matmuls, the first of which gives the logits, then route, then split_routes (not after a NaN). Returns what route
  // does. Where split says that there are misses, start_experts with plan.bank, plan.misses and `a`, and
  // finish_experts, have to follow before the next router: a machine may have told the crew already.
  virtual std::int64_t router(std::span<const Product> products, const Activation& a, const RoutePlan& plan,
                              RouteSplit& split);
  // y[r*used + k] = FFN of expert routes.expert[r,k] on row r. y [w*used, d]. A negative id leaves its row of y alone.
  virtual void expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) = 0;
  // The same for the experts that are off the card, and for the shared expert when it is given: begun here, done when
  // finish_experts returns; other operations may run in between. Everything passed must stay unchanged until then.
  // REQUIRES that no other is running.
  struct SharedExpert {
    const ExpertWeights* weights = nullptr;
    Rows y;  // as of ffn
  };
  virtual void start_experts(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y,
                             const SharedExpert& shared) {
    expert_ffn(bank, routes, a, y);
    if (shared.weights != nullptr) ffn(*shared.weights, a, shared.y);
  }
  virtual void finish_experts() {}
  // y = down(quantised(silu(gate x) * (up x))). y [w, d].
  virtual void ffn(const ExpertWeights& weights, const Activation& a, Rows y) = 0;
  // ffn beside what follows, on a machine that can: true, and y is there for the next combine. False: nothing was done.
  virtual bool start_ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
    (void)weights, (void)a, (void)y;
    return false;
  }
  // out = fma over ranks k with id >= 0 of (weight, y[r*used + k]) from 0, then fma(sigmoid(shared_logit), shared, out)
  virtual void combine(const Routes& routes, ConstRows y, ConstRows shared_logit, ConstRows shared, Rows out) = 0;

  // ---- n-gram embedding (spec 3.3, 3.4) -----------------------------------------------------------------------------
  // Per stream c: s = (key_c . query_c) / sqrt(d); gv_c = sigmoid(sign(s) * sqrt(max(|s|, 1e-6))) * value.
  // key, query, gv [w, D] (normed), value [w, d].
  virtual void ple_gate(ConstRows key, ConstRows query, ConstRows value, int streams, Rows gv) = 0;
  // x = (x + a) + b, in place.
  virtual void add2(Rows x, ConstRows a, ConstRows b) = 0;
  // Every stream of x [w, streams * d] becomes a [w, d]; and every stream becomes stream + a.
  virtual void tile_streams(ConstRows a, int streams, Rows x) = 0;
  virtual void add_streams(Rows x, ConstRows a, int streams) = 0;
  // out[r*streams + s] = a[r] ++ h[r, stream s]. a [w, d], h [w, streams*d], out [w*streams, 2d].
  virtual void pair_streams(ConstRows a, ConstRows h, int streams, Rows out) = 0;
};

}  // namespace tandem
