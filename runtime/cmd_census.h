// `tandem census show|merge|diff`: looking at counts of routes, adding them up, comparing them.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace tandem {

void add_census_command(CLI::App& app, std::function<int()>& action);

}  // namespace tandem
