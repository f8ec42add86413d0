// `tandem eval`: perplexity and top-1 rate of a text or of token ids; logits dumped, or compared with an earlier dump.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code.
void add_eval_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action);

}  // namespace tandem
