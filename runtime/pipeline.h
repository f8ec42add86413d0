// The trunk from token ids to logits: embed, layers, final mixer, head. One call runs any number of rows; the logits of
// a row do not depend on how the rows were cut into calls (docs/numerics.md, L1).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "runtime/model.h"
#include "runtime/ops.h"
#include "runtime/sequence_state.h"

namespace tandem {

enum class PassMode {
  kCommit,  // the rows are final
  kWindow,  // at most kMaxWindow rows; SequenceState::keep must follow before the next pass
};
enum class LogitRows { kNone, kLast, kAll };

// Called with every named intermediate result of a pass, when set: stage name, layer (-1 outside), first position.
using StageTap = std::function<void(std::string_view stage, int layer, std::size_t position, ConstRows rows)>;

// Hears which experts a pass chose, bank by bank. A round is a pass of the trunk (banks 0, 1, ... in order) and what
// follows it in the draft block (bank ModelShape::layers) up to the next.
class RouteObserver {
 public:
  virtual ~RouteObserver() = default;
  // position: of the first row. Ids only; valid during the call.
  virtual void on_routes(PassMode mode, int bank, std::size_t position, const Routes& routes) = 0;
};

struct PassOutput {
  ConstRows logits;  // rows asked for, [rows, vocab]; valid until the next pass
  ConstRows wide;    // [rows of the pass, D], the wide residual before the final mixer (input of the MTP head)
  // Of the columns of the logits, where they are not those of all tokens (MtpWeights::output_ids).
  std::span<const TokenId> ids;
  // With a choice: the tokens chosen, in place of the logits. Of a draft whose logits the host filters: top and sum
  // only.
  std::span<const Chosen> tokens;
};

class Pipeline {
 public:
  // max_rows bounds the rows of one pass (prefill chunk); all work memory is reserved, and the weights are loaded into
  // the machine here.
  Pipeline(const Model& model, Ops& ops, std::size_t max_rows, const LoadOptions& options = {});
  ~Pipeline();

  // Runs `tokens` at the end of the sequence. REQUIRES 0 < tokens.size() <= max_rows(), room in the state, no open
  // window, ids inside the vocabulary. Throws InputError when a layer produces non-finite values (damaged weights).
  // With a choice the machine picks the token that follows each row of logits, at most kMaxWindow of them, and the
  // logits stay where they are.
  PassOutput forward(SequenceState& state, std::span<const TokenId> tokens, PassMode mode, LogitRows logits,
                     const std::optional<TokenChoice>& choice = {});

  // forward in chunks, committing; on_rows (may be empty) sees the logits of every row in order, or only of the last
  // row of all when `logits` is kLast. Returns false when `cancelled` (may be empty) asked to stop between chunks.
  bool prefill(SequenceState& state, std::span<const TokenId> tokens, std::size_t chunk, LogitRows logits,
               const std::function<void(std::size_t first_position, const PassOutput&)>& on_rows,
               const std::function<bool()>& cancelled = {});

  std::size_t max_rows() const;
  const Model& model() const;
  Ops& ops();
  ExpertStore* experts() const;  // null on a machine that reads experts from the file
  void set_tap(StageTap tap);
  // Null: nobody listens. The observer has to outlive the passes.
  void set_route_observer(RouteObserver* observer);

 private:
  friend class MtpHead;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class MtpNorm { kFull, kPerStream };  // hidden norm: one statistic over all streams, or one per stream
enum class MtpAttention { kSparse, kDense };

// How the draft head's next token is chosen. The head's rows are numbered by its own cache, so the place in the text is
// told: `position` of the token chosen.
struct DraftChoice {
  TokenChoice choice;
  bool alone = false;  // the choice is all there is to it; otherwise the host filters the logits
  std::size_t position = 0;
};

// The draft head (spec/model.md section 7): row j takes the wide residual of position j and token j + 1, and predicts
// token j + 2.
class MtpHead {
 public:
  MtpHead(Pipeline& pipeline, MtpNorm norm, MtpAttention attention);
  ~MtpHead();
  // Runs rows at the end of the MTP cache; in window mode state.keep_drafts must follow (several passes may share one
  // window of kMaxWindow rows: chained drafts). Output: draft logits and the wide output, valid until the next pass.
  // With a draft choice tokens[0] has the sum over the last row's logits, and if `alone` the token and no logits.
  PassOutput forward(SequenceState& state, ConstRows wide, std::span<const TokenId> next, PassMode mode,
                     LogitRows logits, const std::optional<DraftChoice>& choice = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
