// `tandem eval`: perplexity and top-1 rate of a text or of token ids; logits dumped, compared with an earlier dump,
// or compared with the float32 forward of the same or another file.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code.
// make_reference_ops makes the machine of --reference. Both factories must outlive `action`.
void add_eval_command(CLI::App& app, const OpsFactory& make_ops, const OpsFactory& make_reference_ops,
                      std::function<int()>& action);

}  // namespace tandem
