#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "placement/check.h"
#include "runtime/expert_store.h"
#include "runtime/mtp_drafter.h"
#include "runtime/timeline.h"

namespace tandem {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Warns once when one token follows itself kRepeatWarning times.
class LoopGuard {
 public:
  bool caught_by(TokenId token) {
    run_ = token == last_ ? run_ + 1 : 1;
    last_ = token;
    return run_ == kRepeatWarning + 1 && !std::exchange(told_, true);
  }

 private:
  TokenId last_ = -1;
  std::size_t run_ = 0;
  bool told_ = false;
};

// Length of the longest suffix of `text` that is a proper prefix of `stop`.
std::size_t partial_match(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

PipelineDecoder::PipelineDecoder(Pipeline& pipeline, SequenceState& state, std::size_t chunk, LogitsHash* hash,
                                 MtpDrafter* head)
    : pipeline_(pipeline), state_(state), chunk_(chunk), hash_(hash), head_(head) {
  CHECK(chunk > 0 && chunk <= pipeline.max_rows(), "{} {}", chunk, pipeline.max_rows());
}

bool PipelineDecoder::append(std::span<const TokenId> tokens, const std::function<bool()>& cancelled,
                             const std::function<void(std::size_t done)>& progress) {
  CHECK(!tokens.empty() && tokens.size() <= state_.room(), "{} {}", tokens.size(), state_.room());
  for (std::size_t done = 0; done < tokens.size();) {
    if (cancelled && cancelled()) return false;
    const std::size_t rows = std::min(chunk_, tokens.size() - done);
    const bool last = done + rows == tokens.size();
    const LogitRows wanted = hash_ != nullptr ? LogitRows::kAll : last ? LogitRows::kLast : LogitRows::kNone;
    const PassOutput output = pipeline_.forward(state_, tokens.subspan(done, rows), PassMode::kCommit, wanted);
    if (hash_ != nullptr) {
      for (std::size_t r = 0; r < rows; ++r) hash_->add(output.logits.span(r));
    }
    if (last) {
      const auto row = output.logits.span(output.logits.rows - 1);
      logits_.assign(row.begin(), row.end());
    }
    if (head_ != nullptr) head_->take(state_.position() - rows, output.wide, MtpDrafter::Rows::kPrompt);
    done += rows;
    if (progress) progress(done);
  }
  return true;
}

// A round of one row has nothing to undo.
void PipelineDecoder::open(std::span<const TokenId> tokens) {
  CHECK(round_rows_ == 0, "a round is open");
  const PassMode mode = tokens.size() == 1 ? PassMode::kCommit : PassMode::kWindow;
  round_ = pipeline_.forward(state_, tokens, mode, LogitRows::kAll, choice_);
  round_rows_ = tokens.size();
}

// A machine whose memory is the host's gains nothing by choosing inside of the pass, and would choose for rows that
// nobody looks at.
void PipelineDecoder::let_choose(const std::optional<TokenChoice>& choice) {
  const bool can = hash_ == nullptr && !pipeline_.ops().memory().is_host();
  choice_ = can ? choice : std::nullopt;
}

std::optional<TokenId> PipelineDecoder::chosen(std::size_t i) const {
  if (round_.tokens.empty()) return {};
  return round_.tokens[i].token;
}

void PipelineDecoder::keep(std::size_t n) {
  const std::size_t rows = std::exchange(round_rows_, 0);
  CHECK(n >= 1 && n <= rows, "{} of {} rows", n, rows);
  if (rows > 1) state_.keep(n);
  if (hash_ != nullptr) {
    for (std::size_t r = 0; r < n; ++r) hash_->add(round_.logits.span(r));
  }
  const ConstRows wide = std::exchange(round_, {}).wide;
  if (head_ != nullptr) head_->take(state_.position() - n, wide.slice(0, n), MtpDrafter::Rows::kRound);
}

std::uint64_t PipelineDecoder::misses() const {
  const ExpertStore* experts = pipeline_.experts();
  return experts == nullptr ? 0 : experts->missed();
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view bytes) {
  if (matched_) return {};
  held_ += bytes;
  std::size_t cut = std::string::npos;
  for (const std::string& stop : stops_) cut = std::min(cut, held_.find(stop));
  if (cut != std::string::npos) {
    matched_ = true;
    held_.resize(cut);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) keep = std::max(keep, partial_match(held_, stop));
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

double GenerateResult::decode_rate() const {
  // The first token comes from the prompt's last pass and costs no pass of its own.
  const std::size_t passes = tokens.size() + (stop_token >= 0 ? 1 : 0);
  return passes > 1 && decode_seconds > 0.0 ? static_cast<double>(passes - 1) / decode_seconds : 0.0;
}

namespace {

// The decode half of generate(): everything after the prompt.
class Rounds {
 public:
  Rounds(Decoder& decoder, Sampler& sampler, const GenerateOptions& options, const GenerateHooks& hooks,
         GenerateResult& result)
      : decoder_(decoder),
        sampler_(sampler),
        options_(options),
        hooks_(hooks),
        result_(result),
        matcher_(options.forced.empty() ? options.stop_strings : std::vector<std::string>{}),
        prefix_(decoder.tokens().begin(), decoder.tokens().end()) {
    const bool plain = !options.biased_acceptance;  // which compares logits
    decoder.let_choose(plain ? plain_choice(sampler.settings()) : std::nullopt);
    if (options.drafter != nullptr)
      options.drafter->start(prefix_, options.answer_start, sampler.settings(), options.stop_ids);
  }

  void run() {
    while (prefix_.size() < decoder_.context()) {
      const TokenId token = pick();
      truth_.push_back(token);
      if (is_stop(token)) {
        result_.reason = EndReason::kStopToken;
        result_.stop_token = token;
        return finish();
      }
      result_.tokens.push_back(token);
      result_.last_committed = false;
      if (const std::optional<EndReason> end = take(token)) {
        result_.reason = *end;
        return finish();
      }
      prefix_.push_back(token);
      // The draft was right: its row follows. Otherwise the next round begins with the token.
      if (used_ < window_.size() && window_[used_] == token) {
        ++used_;
      } else {
        close();
        open(token);
      }
      result_.last_committed = true;
    }
    result_.reason = EndReason::kContext;
    finish();
  }

 private:
  // After the last row that is right; before the first round, after the prompt.
  TokenId sample() {
    if (window_.empty()) return sampler_.sample(decoder_.logits(), prefix_, options_.answer_start);
    if (const std::optional<TokenId> chosen = decoder_.chosen(used_ - 1)) return *chosen;
    return sampler_.sample(decoder_.row(used_ - 1), prefix_, options_.answer_start);
  }

  TokenId pick() {
    const Span span("sample");
    const Stopwatch watch;
    const TokenId token = sample();
    result_.drafts.sample_seconds += watch.seconds();
    if (!options_.forced.empty()) return options_.forced[result_.tokens.size()];
    if (options_.biased_acceptance && used_ < window_.size() && token != window_[used_] &&
        sampler_.at_least_as_likely(window_[used_], token)) {
      ++result_.drafts.kept_though_rejected;
      return window_[used_];
    }
    return token;
  }

  bool is_stop(TokenId token) const {
    return options_.forced.empty() &&
           std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) != options_.stop_ids.end();
  }

  // How many tokens the answer may still have.
  std::size_t left() const {
    const std::size_t most = options_.forced.empty() ? options_.max_tokens : options_.forced.size();
    return most == 0 ? std::numeric_limits<std::size_t>::max() : most - result_.tokens.size();
  }

  void show(std::string_view bytes) {
    result_.shown_bytes += bytes.size();
    if (hooks_.on_text && !bytes.empty()) hooks_.on_text(bytes);
  }

  // Shows a token of the answer; why the answer ends with it, if it does.
  std::optional<EndReason> take(TokenId token) {
    show(matcher_.push(hooks_.token_bytes(token)));
    if (hooks_.on_token) hooks_.on_token(token);
    if (matcher_.matched()) return EndReason::kStopString;
    if (guard_.caught_by(token) && hooks_.on_warning) {
      hooks_.on_warning(
          fmt::format("the model has repeated one token more than {} times. Stop it with Ctrl-C; a higher "
                      "temperature or a repetition penalty may help",
                      kRepeatWarning));
    }
    if (left() == 0) return EndReason::kMaxTokens;
    if (hooks_.cancelled && hooks_.cancelled()) return EndReason::kCancelled;
    return std::nullopt;
  }

  // A round that begins with `token`, the last of prefix_. A row more than there are tokens or positions left would
  // never be looked at.
  void open(TokenId token) {
    round_watch_ = Stopwatch();
    window_.assign(1, token);
    drafts_ = {};
    if (options_.drafter != nullptr) {
      const std::size_t room = decoder_.context() - decoder_.tokens().size();
      drafts_ = options_.drafter->propose(prefix_, std::min(room, left()) - 1);
      for (const Draft& draft : drafts_) window_.push_back(draft.token);
    }
    const double drafted = round_watch_.seconds();
    result_.drafts.draft_seconds += drafted;
    misses_ = decoder_.misses();
    decoder_.open(window_);
    pass_seconds_ = round_watch_.seconds() - drafted;
    result_.drafts.pass_seconds += pass_seconds_;
    used_ = 1;
    truth_.clear();
  }

  // Commits the rows that were looked at.
  void close() {
    if (window_.empty()) {  // before the first round
      truth_.clear();
      return;
    }
    decoder_.keep(used_);
    DraftStats& stats = result_.drafts;
    ++stats.rounds;
    stats.tokens += truth_.size();
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      const bool right = i < truth_.size() && truth_[i] == drafts_[i].token;  // truth_ ends with the first wrong one
      const auto source = static_cast<std::size_t>(drafts_[i].source);
      ++stats.drafted[i];
      ++stats.source_drafted[source];
      stats.accepted[i] += right ? 1 : 0;
      stats.source_accepted[source] += right ? 1 : 0;
    }
    if (options_.drafter != nullptr) {
      const auto misses = static_cast<double>(decoder_.misses() - misses_);
      options_.drafter->settle({truth_, window_.size(), pass_seconds_, round_watch_.seconds(), misses});
    }
    window_.clear();
  }

  void finish() {
    close();
    if (!matcher_.matched()) show(matcher_.flush());
  }

  Decoder& decoder_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  const GenerateHooks& hooks_;
  GenerateResult& result_;
  StopMatcher matcher_;
  LoopGuard guard_;
  std::vector<TokenId> prefix_;  // committed tokens, and those of the open round that are right
  // The open round: its rows, how many of them are right, what was sampled from them.
  std::vector<TokenId> window_;
  std::size_t used_ = 0;
  std::span<const Draft> drafts_;
  std::vector<TokenId> truth_;
  std::uint64_t misses_ = 0;
  double pass_seconds_ = 0;
  Stopwatch round_watch_;
};

}  // namespace

GenerateResult generate(Decoder& decoder, Sampler& sampler, std::span<const TokenId> prompt,
                        const GenerateOptions& options, const GenerateHooks& hooks) {
  CHECK(hooks.token_bytes && !prompt.empty());
  CHECK(decoder.tokens().size() + prompt.size() <= decoder.context(), "{} + {} > {}", decoder.tokens().size(),
        prompt.size(), decoder.context());
  GenerateResult result;
  result.prompt_tokens = prompt.size();
  const Stopwatch prompt_watch;
  const bool read = decoder.append(prompt, hooks.cancelled, [&](std::size_t done) {
    if (hooks.on_prompt) hooks.on_prompt(done, prompt.size());
  });
  result.prompt_seconds = prompt_watch.seconds();
  if (!read) {
    result.reason = EndReason::kCancelled;
    return result;
  }
  const Stopwatch decode_watch;
  Rounds(decoder, sampler, options, hooks, result).run();
  result.decode_seconds = decode_watch.seconds();
  return result;
}

}  // namespace tandem
