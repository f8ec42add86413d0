// `tandem chat`: a conversation in the terminal, or one message a line from a pipe.
#pragma once

#include <functional>

#include "runtime/engine.h"

namespace CLI {
class App;
}

namespace tandem {

// Declares the subcommand. When it is chosen, `action` is set to what is to be done; it returns the exit code.
void add_chat_command(CLI::App& app, const OpsFactory& make_ops, std::function<int()>& action);

}  // namespace tandem
