// Runs texts through the model so that a RouteRecorder can count where their rows go.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "runtime/pipeline.h"
#include "runtime/route_recorder.h"

namespace tandem {

struct ProfileText {
  std::string domain;
  std::vector<TokenId> tokens;
};

struct ProfileOptions {
  std::size_t window = 2048;      // tokens run from an empty state; every text is cut into consecutive windows
  std::size_t chunk = 512;        // rows of one pass
  std::size_t decode_tokens = 0;  // greedy tokens generated after each window
};

struct ProfileHooks {
  std::function<bool(TokenId)> is_stop;                               // ends the generation after a window
  std::function<void(std::size_t done, std::size_t total)> progress;  // tokens, generated ones included
  std::function<bool()> cancelled;
  // Window `window` is done, counting from 0 over all texts: the recorder holds its routes, to be taken.
  std::function<void(std::size_t window)> on_window;
};

std::size_t profile_windows(const std::vector<ProfileText>& texts, const ProfileOptions& options);

// Runs the windows from `first_window` on; the draft head, when given, sees every row whose next token is known.
// REQUIRES state.context() >= the longest window and decode_tokens. Returns false when cancelled: the routes of the
// unfinished window are dropped.
bool profile(Pipeline& pipeline, SequenceState& state, MtpHead* draft, const std::vector<ProfileText>& texts,
             const ProfileOptions& options, std::size_t first_window, RouteRecorder& recorder,
             const ProfileHooks& hooks);

}  // namespace tandem
