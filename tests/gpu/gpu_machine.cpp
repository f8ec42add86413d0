// The card for the end-to-end tests. TANDEM_TEST_GRAPHS=0 runs them without recorded passes, TANDEM_TEST_EARLY=0
// without early starts, TANDEM_TEST_VERIFY=1 has experts computed on both sides.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "cpu/cpu_ops.h"
#include "gpu/gpu_ops.h"
#include "placement/check.h"
#include "tests/e2e/model_machine.h"

namespace tandem::testing {

namespace {
constexpr unsigned kWatchdogSeconds = 300;
}

std::unique_ptr<Ops> make_model_machine(int workers) {
  alarm(kWatchdogSeconds);
  const auto crew = std::make_shared<CpuOps>(workers);
  const char* graphs = std::getenv("TANDEM_TEST_GRAPHS");
  GpuOptions options;
  options.graphs = graphs == nullptr || std::string_view(graphs) != "0";
  const char* early = std::getenv("TANDEM_TEST_EARLY");
  options.early_starts = early == nullptr || std::string_view(early) != "0";
  const char* verify = std::getenv("TANDEM_TEST_VERIFY");
  options.verify_experts = verify != nullptr && std::string_view(verify) == "1";
  options.crew = crew;
  options.parallel = [crew](std::size_t n, const std::function<void(std::size_t)>& body) {
    crew->crew().loop(n, body);
  };
  std::string why_not;
  auto machine = make_gpu_ops(options, &why_not);
  CHECK(machine != nullptr, "{}", why_not);
  return machine;
}

const std::string& no_machine() {
  static const std::string why = [] {
    std::string reason;
    const std::vector<GpuCard> cards = list_gpus(&reason);
    return reason.empty() ? cards[0].problem : reason;
  }();
  return why;
}

}  // namespace tandem::testing
