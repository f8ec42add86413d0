// `tandem profile`: which experts the rows of a text go to, counted into a census and, on request, a trace.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand; see cmd_eval.h. make_ops must outlive `action`.
void add_profile_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action);

}  // namespace tandem
