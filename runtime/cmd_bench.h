// `tandem bench decode`: how fast a model generates, by ways of drafting, over a text.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code. The
// factory must outlive `action`.
void add_bench_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action);

}  // namespace tandem
