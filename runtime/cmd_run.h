// `tandem run`: one prompt in, one answer out.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code.
// Standard output carries the generated text, a line feed, and with --logits-hash the line "logits-hash: HEX". The
// generated text is shown as well-formed UTF-8: what is none becomes U+FFFD.
void add_run_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action);

}  // namespace tandem
