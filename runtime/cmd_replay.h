// `tandem replay`: what ways of keeping experts on the card would have hit, from a trace alone.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace tandem {

void add_replay_command(CLI::App& app, std::function<int()>& action);

}  // namespace tandem
