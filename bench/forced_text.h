// One sequence of random text that is read and then decoded in passes of a fixed width; all rows are kept.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "bench/noise.h"
#include "runtime/pipeline.h"

namespace tandem::bench {

class ForcedText {
 public:
  // REQUIRES passes > 0 and prompt > 0.
  ForcedText(Pipeline& pipeline, std::size_t prompt, std::size_t width, std::size_t passes)
      : pipeline_(pipeline), width_(width), prompt_(prompt), passes_(passes) {
    Draws draws(7);
    const std::size_t count = prompt_ + (passes_ + kWarmUps) * width;
    for (std::size_t i = 0; i < count; ++i)
      text_.push_back(static_cast<TokenId>(draws.below(static_cast<std::size_t>(pipeline.model().shape.vocab))));
  }

  // Seconds of every pass, after a few that are not counted; `warm` is called after these.
  template <typename Warm>
  std::vector<double> run(Warm&& warm) {
    SequenceState state(pipeline_.model().shape, StateOptions{text_.size(), KvType::kF16}, pipeline_.ops().memory());
    const std::span<const TokenId> text(text_);
    pipeline_.prefill(state, text.subspan(0, prompt_), pipeline_.max_rows(), LogitRows::kNone, {});
    std::vector<double> seconds;
    for (std::size_t i = 0; i < passes_ + kWarmUps; ++i) {
      if (i == kWarmUps) warm();
      const auto start = std::chrono::steady_clock::now();
      pipeline_.forward(state, text.subspan(prompt_ + i * width_, width_), PassMode::kWindow, LogitRows::kAll);
      state.keep(width_);
      if (i >= kWarmUps)
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return seconds;
  }
  std::vector<double> run() {
    return run([] {});
  }

 private:
  static constexpr std::size_t kWarmUps = 3;
  Pipeline& pipeline_;
  std::size_t width_, prompt_, passes_;
  std::vector<TokenId> text_;
};

}  // namespace tandem::bench
