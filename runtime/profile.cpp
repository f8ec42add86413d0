#include "runtime/profile.h"

#include <algorithm>

#include "placement/check.h"
#include "runtime/evaluate.h"

namespace tandem {
namespace {

std::size_t windows_of(const ProfileText& text, std::size_t window) {
  return (text.tokens.size() + window - 1) / window;
}

struct Runner {
  Pipeline& pipeline;
  SequenceState& state;
  MtpHead* draft;
  const ProfileOptions& options;
  const ProfileHooks& hooks;
  const std::function<void()>& row_done;

  void run_draft(ConstRows wide, std::span<const TokenId> next) {
    if (draft != nullptr && !next.empty())
      draft->forward(state, wide.slice(0, next.size()), next, PassMode::kCommit, LogitRows::kNone);
  }

  // Runs the tokens of a window; returns the most likely next one, or -1 when cancelled. The draft head's last row
  // waits for a next token.
  TokenId read(std::span<const TokenId> tokens) {
    TokenId next = -1;
    for (std::size_t done = 0; done < tokens.size();) {
      if (hooks.cancelled && hooks.cancelled()) return -1;
      const std::size_t rows = std::min(options.chunk, tokens.size() - done);
      const bool last = done + rows == tokens.size();
      const bool wanted = last && options.decode_tokens > 0;
      const PassOutput out = pipeline.forward(state, tokens.subspan(done, rows), PassMode::kCommit,
                                              wanted ? LogitRows::kLast : LogitRows::kNone);
      next = wanted ? static_cast<TokenId>(arg_max(out.logits.span(0))) : 0;
      std::vector<TokenId> after(tokens.begin() + static_cast<std::ptrdiff_t>(done) + 1,
                                 tokens.begin() + static_cast<std::ptrdiff_t>(last ? tokens.size() : done + rows + 1));
      if (wanted) after.push_back(next);
      run_draft(out.wide, after);
      done += rows;
      for (std::size_t r = 0; r < rows; ++r) row_done();
    }
    return next;
  }

  // Generates greedily, one pass a token. False when cancelled.
  bool generate(TokenId token) {
    for (std::size_t n = 0; n < options.decode_tokens; ++n) {
      if (hooks.cancelled && hooks.cancelled()) return false;
      if (hooks.is_stop && hooks.is_stop(token)) return true;
      const PassOutput out = pipeline.forward(state, {&token, 1}, PassMode::kCommit, LogitRows::kLast);
      token = static_cast<TokenId>(arg_max(out.logits.span(0)));
      run_draft(out.wide, {&token, 1});
      row_done();
    }
    return true;
  }
};

}  // namespace

std::size_t profile_windows(const std::vector<ProfileText>& texts, const ProfileOptions& options) {
  std::size_t n = 0;
  for (const ProfileText& text : texts) n += windows_of(text, options.window);
  return n;
}

bool profile(Pipeline& pipeline, SequenceState& state, MtpHead* draft, const std::vector<ProfileText>& texts,
             const ProfileOptions& options, std::size_t first_window, RouteRecorder& recorder,
             const ProfileHooks& hooks) {
  CHECK(options.window > 0 && options.chunk > 0 && options.chunk <= pipeline.max_rows());
  std::size_t total = profile_windows(texts, options) * options.decode_tokens, done = 0, index = 0;
  for (const ProfileText& text : texts) total += text.tokens.size();
  const std::function<void()> row_done = [&] {
    if (hooks.progress) hooks.progress(++done, total);
  };
  Runner runner{pipeline, state, draft, options, hooks, row_done};
  for (const ProfileText& text : texts) {
    for (std::size_t start = 0; start < text.tokens.size(); start += options.window, ++index) {
      const std::size_t size = std::min(options.window, text.tokens.size() - start);
      const std::size_t end = done + size + options.decode_tokens;
      if (index >= first_window) {
        state.reset();
        recorder.begin(text.domain, Phase::kPrefill);
        const TokenId token = runner.read(std::span(text.tokens).subspan(start, size));
        recorder.begin(text.domain, Phase::kDecode);
        if (token < 0 || !runner.generate(token)) {
          recorder.drop();
          return false;
        }
        if (hooks.on_window) hooks.on_window(index);
      }
      done = end;  // whatever a stop token left out
    }
  }
  return true;
}

}  // namespace tandem
