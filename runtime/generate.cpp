#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "placement/check.h"

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

PipelineDecoder::PipelineDecoder(Pipeline& pipeline, SequenceState& state, std::size_t chunk, LogitsHash* hash)
    : pipeline_(pipeline), state_(state), chunk_(chunk), hash_(hash) {
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
    done += rows;
    if (progress) progress(done);
  }
  return true;
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
void decode(Decoder& decoder, Sampler& sampler, const GenerateOptions& options, const GenerateHooks& hooks,
            GenerateResult& result) {
  StopMatcher matcher(options.stop_strings);
  LoopGuard guard;
  const auto show = [&](std::string_view bytes) {
    result.shown_bytes += bytes.size();
    if (hooks.on_text && !bytes.empty()) hooks.on_text(bytes);
  };
  for (;;) {
    if (decoder.tokens().size() >= decoder.context()) {
      result.reason = EndReason::kContext;
      break;
    }
    const TokenId token = sampler.sample(decoder.logits(), decoder.tokens(), options.answer_start);
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), token) != options.stop_ids.end()) {
      result.reason = EndReason::kStopToken;
      result.stop_token = token;
      break;
    }
    result.tokens.push_back(token);
    result.last_committed = false;
    show(matcher.push(hooks.token_bytes(token)));
    if (hooks.on_token) hooks.on_token(token);
    if (matcher.matched()) {
      result.reason = EndReason::kStopString;
      break;
    }
    if (guard.caught_by(token) && hooks.on_warning) {
      hooks.on_warning(
          fmt::format("the model has repeated one token more than {} times. Stop it with Ctrl-C; a higher "
                      "temperature or a repetition penalty may help",
                      kRepeatWarning));
    }
    if (options.max_tokens != 0 && result.tokens.size() >= options.max_tokens) {
      result.reason = EndReason::kMaxTokens;
      break;
    }
    if (hooks.cancelled && hooks.cancelled()) {
      result.reason = EndReason::kCancelled;
      break;
    }
    result.last_committed = decoder.append({&token, 1}, {}, {});
    CHECK(result.last_committed);
  }
  if (!matcher.matched()) show(matcher.flush());
}

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
  decode(decoder, sampler, options, hooks, result);
  result.decode_seconds = decode_watch.seconds();
  return result;
}

}  // namespace tandem
