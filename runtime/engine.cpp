#include "runtime/engine.h"

#include <algorithm>

#include "placement/check.h"
#include "runtime/progress.h"

namespace tandem {
namespace {

Model open_model(const EngineOptions& options) {
  Model model = Model::open(options.model, options.mtp);
  if (!options.use_mtp && model.mtp) {
    model.mtp.reset();
    model.mtp_note = "switched off by --no-mtp";
  }
  return model;
}

std::size_t choose_context(const EngineOptions& options, const ModelShape& shape) {
  const auto trained = static_cast<std::size_t>(shape.max_positions);
  if (options.context == 0) return std::min(trained, kDefaultContext);
  if (options.context > trained) {
    fail_input("--context: expected at most {} positions, which is what {} was trained for, found {}. Fix: lower it",
               trained, options.model.string(), options.context);
  }
  return options.context;
}

std::size_t choose_chunk(const EngineOptions& options, std::size_t context) {
  if (options.prefill_chunk == 0 || options.prefill_chunk > kMaxPrefillChunk) {
    fail_input("--prefill-chunk: expected 1 to {} rows, found {}", kMaxPrefillChunk, options.prefill_chunk);
  }
  return std::min(options.prefill_chunk, context);
}

// The weights are packed here, which takes a while at full size.
std::unique_ptr<Pipeline> make_pipeline(const Model& model, Ops& ops, std::size_t chunk) {
  Progress progress("loading the weights", "MB");
  LoadOptions load;
  load.progress = [&progress](std::size_t done, std::size_t total) {
    progress.update(done / 1'000'000, total / 1'000'000);
  };
  return std::make_unique<Pipeline>(model, ops, chunk, load);
}

}  // namespace

Engine::Engine(const EngineOptions& options, const OpsFactory& make_ops)
    : model_(open_model(options)),
      tokenizer_(Tokenizer::from_gguf(model_.gguf())),
      template_(ChatTemplate::from_gguf(model_.gguf())),
      ops_(make_ops(options)),
      context_(choose_context(options, model_.shape)),
      chunk_(choose_chunk(options, context_)),
      kv_(options.kv),
      pipeline_(make_pipeline(model_, *ops_, chunk_)),
      warnings_(model_.warnings) {
  if (!template_.warning().empty()) warnings_.push_back(template_.warning());
}

}  // namespace tandem
