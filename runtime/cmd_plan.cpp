#include "runtime/cmd_plan.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <memory>
#include <sstream>

#include "placement/check.h"
#include "placement/suggest.h"
#include "placement/units.h"
#include "runtime/output.h"
#include "runtime/plan_model.h"
#include "runtime/session_options.h"
#include "runtime/system_facts.h"

namespace tandem {
namespace {

std::int64_t parse_count(std::string_view text, std::string_view where, std::int64_t most) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value > most)
    fail_input("{}: expected a whole number from 0 to {}, found \"{}\"", where, most, text);
  return value;
}

constexpr std::int64_t kMaxSlots = 1 << 24;

// Applies "vram=16GiB,ram=32GiB,context=65536,slots=100". Sizes stand for another machine: the reserves stay.
void apply_what_if(const std::string& text, PlanInput& input) {
  const std::vector<std::string> keys{"vram", "ram", "context", "slots"};
  std::stringstream parts(text);
  bool any = false;
  for (std::string part; std::getline(parts, part, ','); any = true) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals), where = fmt::format("--what-if {}", key);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      const std::string near = nearest_name(key, keys);
      fail_input("--what-if: expected vram=SIZE, ram=SIZE, context=N or slots=N, found \"{}\"{}", part,
                 near.empty() ? "" : fmt::format(". Fix: did you mean {}?", near));
    }
    if (key == "vram") {
      const std::int64_t bytes = parse_bytes_or_fail(value, where);
      input.policy.memory.vram.reset();
      if (input.plays_card) {
        input.policy.memory.vram = bytes;
      } else {
        if (!input.hardware.gpu) input.hardware.gpu.emplace();
        input.hardware.gpu->vram_total = input.hardware.gpu->vram_free = bytes;
        input.card = bytes > 0;
      }
    } else if (key == "ram") {
      input.policy.memory.ram.reset();
      input.hardware.ram.total = input.hardware.ram.available = parse_bytes_or_fail(value, where);
    } else if (key == "context") {
      input.policy.context = parse_count(value, where, kMaxSlots);
      input.state = plan_state(input.policy, input.model.shape);
    } else {
      input.policy.memory.slots = static_cast<int>(parse_count(value, where, kMaxSlots));
      input.plays_card = !input.card;
      if (input.policy.memory.vram == 0) input.policy.memory.vram.reset();
    }
  }
  if (!any) fail_input("--what-if: expected vram=SIZE, ram=SIZE, context=N or slots=N, found nothing");
}

struct Command {
  PlanOptions options;
  bool json = false;
  std::optional<int> explain;
};

int run_plan(const Command& command) {
  const PlanReport report = make_plan_report(command.options);
  if (command.explain) {
    const int banks = report.plan.placement.banks;
    if (*command.explain < 0 || *command.explain >= banks)
      fail_input("--explain: expected a layer from 0 to {}, found {}", banks - 1, *command.explain);
  }
  std::string text = command.json ? plan_json(report) : plan_text(report);
  if (command.explain && !command.json) text += explain_layer(report, *command.explain);
  write_stdout(text);
  return report.plan.fits() ? 0 : 1;
}

}  // namespace

PlanReport make_plan_report(const PlanOptions& options) {
  const PlacementChoices& choices = options.placement;
  const Policy policy = resolve_policy(choices);
  const Model model = Model::open(options.model, options.mtp, policy.drafting.mtp ? MtpPolicy::kAuto : MtpPolicy::kOff);
  PlanReport report = plan_report(model, policy, choices, options.prefill_rows);
  const PlanInput& input = report.input;
  if (!input.card && !input.plays_card && !choices.cpu && policy.memory.vram != 0 && choices.hardware.empty()) {
    report.plan.warnings.push_back(
        "no card is known here: planned for the CPU alone. --vram 24GiB plans for a card of that size, --hardware FILE "
        "for a described machine");
  }
  for (const std::string& text : options.what_ifs) {
    PlanInput other = input;
    apply_what_if(text, other);
    const std::int64_t rows = options.prefill_rows > 0 ? options.prefill_rows : planned_prefill_rows(other);
    if (rows != other.model.prefill_rows)
      other.model = plan_model(model, rows, draft_vocabulary_size(other.policy.drafting, model.shape.vocab));
    report.what_ifs.push_back({text, make_plan(other)});
  }
  return report;
}

void add_plan_command(CLI::App& app, std::function<int()>& action) {
  auto command = std::make_shared<Command>();
  PlanOptions& options = command->options;
  CLI::App* plan = app.add_subcommand("plan", "Show where every byte would live and how fast it would run");
  const auto count = [plan](const std::string& name, const std::function<void(std::int64_t)>& set,
                            const std::string& help) {
    plan->add_option_function<std::string>(
            name, [set, name](const std::string& text) { set(parse_count(text, name, kMaxSlots)); }, help)
        ->type_name("N");
  };
  plan->add_option("MODEL", options.model, "GGUF file, or any shard of a split one; only its header is read")
      ->required()
      ->type_name("");
  plan->add_option("--mtp", options.mtp, "separate GGUF file with the draft head")->type_name("FILE");
  plan->add_flag_callback(
      "--no-mtp", [&options] { options.placement.use_mtp = false; }, "leave the draft head out");
  PlacementChoices& choices = options.placement;
  add_placement_flags(*plan, choices);
  add_words(*plan, "--device", {"auto", "cpu"}, "cpu: without a card; with --vram or --slots the CPU plays one", "NAME",
            [&choices](std::size_t choice) { choices.cpu = choice == 1; });
  count(
      "--context", [&choices](std::int64_t n) { choices.context = n; }, "positions of the conversation");
  add_words(*plan, "--kv", {"f16", "f32"}, "f16 or f32: how keys and values are kept", "TYPE",
            [&choices](std::size_t choice) { choices.kv = choice == 0 ? KvFormat::kF16 : KvFormat::kF32; });
  count(
      "--prefill-chunk", [&options](std::int64_t n) { options.prefill_rows = n; }, "prompt tokens per pass");
  plan->add_flag("--json", command->json, "everything as one JSON object");
  count(
      "--explain", [command](std::int64_t n) { command->explain = static_cast<int>(n); },
      "list the experts of this layer that are on the card");
  plan->add_option("--what-if", options.what_ifs,
                   "another plan beside this one: vram=SIZE,ram=SIZE,context=N,slots=N; may be repeated")
      ->type_name("LIST")
      ->take_all();
  plan->footer(
      "Examples:\n"
      "  tandem plan model.gguf --hardware configs/hardware/rtx3090-64gb.yaml\n"
      "  tandem plan model.gguf --vram 24GiB --ram 64GiB --context 131072 --what-if vram=16GiB,ram=32GiB\n"
      "  tandem plan model.gguf --device cpu --slots 100 --explain 0");
  plan->callback([command, &action] { action = [command] { return run_plan(*command); }; });
}

}  // namespace tandem
