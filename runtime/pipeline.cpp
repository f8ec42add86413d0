#include "runtime/pipeline.h"

#include "runtime/expert_store.h"
#include "runtime/pipeline_impl.h"
#include "runtime/timeline.h"

namespace tandem {

namespace {
std::size_t logit_rows(std::size_t rows, LogitRows logits) {
  return logits == LogitRows::kNone ? 0 : logits == LogitRows::kLast ? 1 : rows;
}
}  // namespace

Pipeline::Impl::Impl(const Model& model_, Ops& ops_, std::size_t max_rows_, const LoadOptions& options)
    : model(model_),
      ops(ops_),
      max_rows(std::max(max_rows_, kMaxWindow)),
      loaded(ops_.load(model_, options)),
      output_hc(make_hc_params(ops_.memory(), model_.output_hc)) {
  for (const LayerWeights& layer : model.layers) layers.push_back(make_layer_params(ops.memory(), layer));
  if (model.shape.ple_layer >= 0) ngrams.emplace(model.shape, model.ple_table, options.ngram_in_ram);
  const auto context = static_cast<std::size_t>(model.shape.max_positions);
  Region* const lent = loaded.experts ? loaded.experts->lent_memory().prompt.get() : nullptr;
  const std::size_t short_rows = lent == nullptr ? max_rows : loaded.experts->short_rows();
  CHECK(short_rows >= kMaxWindow, "memory for passes of {} rows and more is lent", short_rows + 1);
  work = std::make_unique<Workspace>(ops.memory(), model.shape, std::min(max_rows, short_rows), context,
                                     options.part_rows);
  if (short_rows < max_rows) {
    loaded.experts->reclaim();  // what other pipelines over these experts have lent: it is zeroed here
    long_work = std::make_unique<Workspace>(ops.memory(), *lent, model.shape, max_rows, context, options.part_rows);
  }
  ws = work.get();
}

Workspace& Pipeline::Impl::begin(std::size_t rows) {
  ws = work.get();
  if (rows > work->max_rows) {
    ws = long_work.get();
    loaded.experts->reclaim();
  }
  return *ws;
}

void Pipeline::Impl::prepare(const WeightView& table, std::span<const TokenId> tokens, std::size_t position) const {
  const std::size_t w = tokens.size();
  const Rows out = ws->embedding.host(w);
  const auto ratio = static_cast<std::size_t>(model.shape.indexer_ratio);
  host_blocks(w, [&](std::size_t first, std::size_t count) {
    for (std::size_t i = first; i < first + count; ++i) {
      const TokenId id = tokens[i];
      CHECK(id >= 0 && static_cast<std::size_t>(id) < table.rows, "token {} of a vocabulary of {}", id, table.rows);
      table.read_row(static_cast<std::size_t>(id), out.row(i));
    }
    fill_rope(model.shape, position + first, 1, ws->rope_cos.host(w).slice(first, count),
              ws->rope_sin.host(w).slice(first, count));
  });
  const std::size_t blocks = w / ratio + 1;
  host_blocks(blocks, [&](std::size_t first, std::size_t count) {
    fill_rope(model.shape, (position / ratio + first) * ratio, ratio, ws->block_cos.host(blocks).slice(first, count),
              ws->block_sin.host(blocks).slice(first, count));
  });
}

void Pipeline::Impl::host_blocks(std::size_t n, FunctionRef<void(std::size_t, std::size_t)> body) const {
  constexpr std::size_t kBlock = 64;
  if (n <= kBlock) return body(0, n);
  ops.host_loop((n + kBlock - 1) / kBlock, [&](std::size_t i) { body(i * kBlock, std::min(kBlock, n - i * kBlock)); });
}

void Pipeline::Impl::send_inputs(std::size_t rows) const {
  ws->embedding.send(rows);
  for (const StagedBuffer* rope : {&ws->rope_cos, &ws->rope_sin}) rope->send(rows);
  const std::size_t blocks = rows / static_cast<std::size_t>(model.shape.indexer_ratio) + 1;
  for (const StagedBuffer* rope : {&ws->block_cos, &ws->block_sin}) rope->send(blocks);
}

Pass Pipeline::Impl::make_pass(SequenceState& state, int layer, std::size_t position, std::size_t pending,
                               std::size_t rows, PassMode mode) {
  CHECK(&state.memory() == &ops.memory(), "a sequence in the memory of another machine");
  return {ops,         *ws,
          model.shape, state,
          tap,         position,
          rows,        mode,
          pending,     {ws->rope_cos.rows(rows), ws->rope_sin.rows(rows)},
          layer,       loaded.experts.get(),
          0,           rows};
}

void Pipeline::Impl::run(const Pass& pass, std::uint64_t code, bool sparse, const Wanted& wanted, const LateInput& late,
                         FunctionRef<void()> body) {
  // Everything on which the body's calls depend beside the numbers.
  const std::uint32_t chooses = !wanted.choice ? 0 : wanted.choice->temperature == 0.0F ? 1 : 2;
  const std::uint32_t kind = static_cast<std::uint32_t>(wanted.sum) << 9 |
                             static_cast<std::uint32_t>(wanted.fetched) << 8 | chooses << 6 |
                             static_cast<std::uint32_t>(sparse) << 5 | static_cast<std::uint32_t>(pass.selects()) << 4 |
                             static_cast<std::uint32_t>(pass.mode) << 2 | static_cast<std::uint32_t>(wanted.rows);
  const PassKey key{pass.state.identity(), ws->identity, code, static_cast<std::uint32_t>(pass.rows), kind,
                    static_cast<bool>(tap)};
  const PassNumbers numbers{static_cast<std::int32_t>(pass.position), static_cast<std::int32_t>(pass.state.replay),
                            static_cast<std::int32_t>(pass.pending), wanted.choice.value_or(TokenChoice{}),
                            static_cast<std::int32_t>(wanted.chosen_from)};
  if (const std::optional<BadValue> bad = ops.run_pass(key, numbers, late, body))
    Pass::fail_not_finite(*bad, pass.position);
}

void Pipeline::Impl::head(const Pass& pass, const HcParams& mixer, const WeightView& output,
                          const Wanted& wanted) const {
  const std::size_t count = logit_rows(pass.rows, wanted.rows);
  const Span span("head", pass.layer);
  // Parts without a row that wants logits only have their last WRITE to come.
  pass.by_parts([&](const Pass& part) {
    if (part.first + part.rows <= pass.rows - count) return part.write();
    hc_read(part, "output_hc", mixer, ws->block_quant(pass.rows).slice(part.first, part.rows));
    part.show("final_mixer", part.of(ws->mixed));
  });
  if (model.mtp) ws->x.fetch(pass.rows);
  if (count == 0) return;
  const ConstRows rows = ws->mixed.rows(pass.rows).slice(pass.rows - count, count);
  ops.matmul(output,
             pass.activation("head", rows, {&output}, ws->block_quant(pass.rows).slice(pass.rows - count, count)),
             ws->logits.rows(count));
  if (wanted.fetched) ws->logits.fetch(count);
  if (!wanted.choice) return;
  CHECK(count <= kMaxWindow, "{} tokens to choose", count);
  ops.stage(pass.layer < 0 ? "logits" : "draft logits", pass.layer);
  const ConstRows all = ws->logits.rows(count);
  if (!wanted.fetched) ops.choose(all, *wanted.choice, wanted.chosen_from, wanted.ids, ws->chosen.data());
  if (wanted.sum) ops.softmax_sum(all, wanted.choice->temperature, ws->chosen.data());
  ws->chosen.fetch(0, count);
}

PassOutput Pipeline::Impl::output(std::size_t rows, const Wanted& wanted) const {
  PassOutput out;
  const std::size_t count = logit_rows(rows, wanted.rows);
  out.wide = ws->x.host(rows);
  if (wanted.choice) out.tokens = {ws->chosen.host(), count};
  if (wanted.fetched && count > 0) out.logits = ws->logits.host(count);
  return out;
}

void Pipeline::Impl::count_routes(int first, int last, const Pass& pass) const {
  const std::size_t rows = pass.rows;
  const auto used = static_cast<std::size_t>(model.shape.experts_used);
  for (int bank = first; bank < last; ++bank) {
    std::int32_t* ids = ws->route_log(static_cast<std::size_t>(bank), rows, used);
    if (route_observer != nullptr)
      route_observer->on_routes(pass.mode, bank, pass.position, {ids, nullptr, rows, used});
    if (loaded.experts) loaded.experts->count(bank, {ids, rows * used}, rows);
  }
}

Pipeline::Pipeline(const Model& model, Ops& ops, std::size_t max_rows, const LoadOptions& options)
    : impl_(std::make_unique<Impl>(model, ops, max_rows, options)) {}
Pipeline::~Pipeline() = default;

std::size_t Pipeline::max_rows() const {
  return impl_->max_rows;
}
const Model& Pipeline::model() const {
  return impl_->model;
}
Ops& Pipeline::ops() {
  return impl_->ops;
}
ExpertStore* Pipeline::experts() const {
  return impl_->loaded.experts.get();
}
void Pipeline::set_tap(StageTap tap) {
  impl_->tap = std::move(tap);
}
void Pipeline::set_route_observer(RouteObserver* observer) {
  impl_->route_observer = observer;
}

PassOutput Pipeline::forward(SequenceState& state, std::span<const TokenId> tokens, PassMode mode, LogitRows logits,
                             const std::optional<TokenChoice>& choice) {
  Impl& impl = *impl_;
  const ModelShape& shape = impl.model.shape;
  const std::size_t w = tokens.size();
  CHECK(w > 0 && w <= (mode == PassMode::kWindow ? kMaxWindow : impl.max_rows), "{} rows in a pass", w);
  CHECK(state.pending() == 0, "{} rows of an open window", state.pending());
  CHECK(w <= state.room(), "{} rows with room for {}", w, state.room());

  if (impl.loaded.experts) impl.loaded.experts->begin_round(mode == PassMode::kWindow || w == 1, w);
  state.need_rows(cache_rows_needed(static_cast<std::int64_t>(state.position()), static_cast<std::int64_t>(w)));
  Workspace& ws = impl.begin(w);
  impl.prepare(impl.model.token_embd, tokens, state.position());
  // Rows of the n-gram table are looked up, on the disk perhaps, while the first layers run.
  const auto gather = [&] {
    const Span span("n-gram rows");
    const auto most = static_cast<std::size_t>(shape.ngram_size - 1);
    const auto before = state.history_before(most);
    const Rows out = ws.ngram.host(w);
    impl.host_blocks(w, [&](std::size_t first, std::size_t count) {
      const auto own = first == 0 ? std::span<const TokenId>(before)
                                  : tokens.subspan(first - std::min(first, most), std::min(first, most));
      impl.ngrams->gather(own, tokens.subspan(first, count), out.slice(first, count));
    });
  };
  LateInput late;
  if (impl.ngrams) late.emplace(gather);
  ws.reserve_logits(logit_rows(w, logits), impl.model.output.rows);
  Pass pass = impl.make_pass(state, -1, state.position(), 0, w, mode);
  const Wanted wanted{.rows = logits,
                      .fetched = !choice,
                      .choice = choice,
                      .chosen_from = pass.position + w - logit_rows(w, logits) + 1};
  impl.run(pass, impl.identity, true, wanted, late, [&] {
    impl.send_inputs(w);
    impl.ops.tile_streams(ws.embedding.rows(w), shape.streams, ws.x.rows(w));
    for (std::size_t i = 0; i < impl.layers.size(); ++i) {
      pass.layer = static_cast<int>(i);
      run_layer(pass, impl.layers[i], shape.is_gdn[i] ? &state.gdn[i] : nullptr,
                shape.is_gdn[i] ? nullptr : &state.attention[i], true);
    }
    pass.layer = -1;
    impl.head(pass, impl.output_hc, impl.model.output, wanted);
  });
  state.replay = 0;
  if (mode == PassMode::kWindow)
    state.append_window(tokens);
  else
    state.append_committed(tokens);
  impl.count_routes(0, shape.layers, pass);
  return impl.output(w, wanted);
}

bool Pipeline::prefill(SequenceState& state, std::span<const TokenId> tokens, std::size_t chunk, LogitRows logits,
                       const std::function<void(std::size_t, const PassOutput&)>& on_rows,
                       const std::function<bool()>& cancelled) {
  CHECK(chunk > 0 && chunk <= impl_->max_rows, "chunks of {} rows, at most {}", chunk, impl_->max_rows);
  for (std::size_t done = 0; done < tokens.size();) {
    if (cancelled && cancelled()) return false;
    const std::size_t count = std::min(chunk, tokens.size() - done);
    const bool last = done + count == tokens.size();
    const std::size_t position = state.position();
    const PassOutput out = forward(state, tokens.subspan(done, count), PassMode::kCommit,
                                   logits == LogitRows::kLast && !last ? LogitRows::kNone : logits);
    if (on_rows && out.logits) on_rows(position + count - out.logits.rows, out);
    done += count;
  }
  return true;
}

}  // namespace tandem
