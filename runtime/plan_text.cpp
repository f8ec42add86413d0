#include "runtime/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "placement/cost_model.h"
#include "placement/units.h"
#include "runtime/cmd_inspect.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMilli = 1e3, kPercent = 100.0;
constexpr std::size_t kColumns = 100;

std::string heading(std::string_view what, std::string_view rest) {
  return fmt::format("\n{:<10}{}\n", what, rest);
}

// Words filled up to the width, further lines indented.
std::string wrapped(std::string_view head, std::string_view text) {
  std::string out, line(head);
  bool first = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!first && line.size() + 1 + word.size() > kColumns) {
      out += line + "\n";
      line.assign(head.size(), ' ');
      first = true;
    }
    line += fmt::format("{}{}", first ? "" : " ", word);
    first = false;
    at = end + 1;
  }
  return out + line + "\n";
}

std::string memory_section(const Plan& plan, Memory memory, std::string_view name, std::int64_t budget,
                           std::int64_t used) {
  std::string rows;
  std::int64_t total = 0;
  for (const PlanItem& item : plan.items) {
    if (item.memory != memory) continue;
    total += item.bytes;
    rows += fmt::format("  {:<18}{:>10}{}{}\n", item.what, format_bytes(item.bytes), item.note.empty() ? "" : "   ",
                        item.note);
  }
  if (rows.empty()) return {};
  const std::string sum =
      memory == Memory::kDisk ? format_bytes(total) : fmt::format("{} of {}", format_bytes(used), format_bytes(budget));
  return heading(name, sum) + rows;
}

std::string outlook_text(std::string_view memory, std::string what, const std::optional<Plan::Outlook>& outlook) {
  if (!outlook) return {};
  if (outlook->tokens_per_second > 0) what += fmt::format(", {:.1f} tok/s", outlook->tokens_per_second);
  return fmt::format("  {:<18}1 GiB more {}: {}\n", "", memory, what);
}

std::string experts_section(const PlanReport& report) {
  const Plan& plan = report.plan;
  const bool slots = report.input.card || report.input.plays_card;
  std::string text = heading(
      "Experts", slots ? fmt::format("{:.1f} % of routes hit the card ({:.1f} % of bytes), "
                                     "{:.1f} misses a token",
                                     kPercent * plan.hit_rate, kPercent * plan.hit_rate_bytes, plan.misses_per_row)
                       : fmt::format("{:.0f} a token, all computed by the CPU", plan.misses_per_row));
  text += fmt::format("  {:<18}{}\n", "likely by",
                      report.input.policy.census.empty() ? "nothing: no census, every expert counts the same"
                                                         : "the census of the policy");
  text += wrapped(fmt::format("  {:<18}", "limit"), plan.limit);
  if (plan.more_vram)
    text += outlook_text("VRAM", fmt::format("{:.1f} % hits", kPercent * plan.more_vram->hit_rate), plan.more_vram);
  if (plan.more_ram)
    text += outlook_text("RAM", fmt::format("{:.1f} from disk a token", plan.more_ram->disk_per_row), plan.more_ram);
  if (!plan.lent.empty()) {
    const auto own = static_cast<std::int64_t>(plan.slots), lent = std::ssize(plan.lent);
    text += fmt::format("  {:<18}{} of {} while text is generated: {} in slots, {} in lent memory\n", "on the card",
                        grouped(own + lent), grouped(std::ssize(plan.placement.place)), grouped(own), grouped(lent));
  }
  if (plan.cache_empty && plan.cache_full && plan.cache_empty->hit_rate != plan.cache_full->hit_rate) {
    const auto at = [](const Plan::Outlook& o) {
      return o.tokens_per_second > 0
                 ? fmt::format("{:.1f} % hits, {:.1f} tok/s", kPercent * o.hit_rate, o.tokens_per_second)
                 : fmt::format("{:.1f} % hits", kPercent * o.hit_rate);
    };
    text += wrapped(fmt::format("  {:<18}", "conversation"),
                    fmt::format("{} at its start, {} when the context is full; all else here with half of it in use",
                                at(*plan.cache_empty), at(*plan.cache_full)));
  }
  return text;
}

std::string rounds_section(const PlanReport& report) {
  const Plan& plan = report.plan;
  if (plan.rounds.empty())
    return "\n" + wrapped(fmt::format("{:<10}", "Speed"),
                          fmt::format("not predicted without {}: `tandem doctor` measures this machine, and "
                                      "--hardware FILE reads what it wrote",
                                      plan.unknown));
  const bool card = report.input.card, range = !plan.slowest.empty();
  std::string text = heading("Speed", fmt::format("predicted, ms a round; a crew of {}", plan.workers));
  text += fmt::format("  {:<8}{:>8}{:>10}{:>9}{:>8}{:>10}{:>10}{:>9}{:>9}{}\n", "drafts", "dense", "experts",
                      card ? "(wait)" : "", "head", "drafting", "round", "tokens", "tok/s", range ? "      range" : "");
  const RoundTime* best = plan.best_round();
  for (const RoundTime& r : plan.rounds) {
    const auto drafts = static_cast<std::size_t>(r.rows - 1);
    text +=
        fmt::format("  {:<8}{:>8.2f}{:>10.2f}{:>9}{:>8.2f}{:>10.2f}{:>10.2f}{:>9.2f}{:>9.1f}{}{}\n", drafts,
                    kMilli * r.dense, kMilli * r.experts, card ? fmt::format("({:.2f})", kMilli * r.wait) : "",
                    kMilli * (r.head + r.sampling), kMilli * r.draft, kMilli * r.total, r.tokens, r.tokens_per_second(),
                    range ? fmt::format("{:>6.0f} to {:.0f}", plan.slowest[drafts], plan.fastest[drafts]) : "",
                    plan.rounds.size() > 1 && &r == best ? " *" : "");
  }
  if (range)
    text += wrapped("  ",
                    fmt::format("The machine was not measured: its rates and fixed costs may be off by {:.0f} % either "
                                "way. Accepted drafts are assumed, see docs/placement.md",
                                kPercent * report.input.hardware.spread));
  if (best != nullptr && best->fetched > 0) {
    const std::string drafts = best->rows == 1   ? "Without drafts"
                               : best->rows == 2 ? "With a draft"
                                                 : fmt::format("With {} drafts", best->rows - 1);
    text +=
        wrapped("  ", fmt::format("{}, {:.0f} of the experts that the card lacks are fetched ahead of their layers, "
                                  "so that the CPU has fewer to compute.",
                                  drafts, best->fetched));
  }
  if (plan.stream_rows > 0)
    text +=
        wrapped("  ", fmt::format("Prompts: passes of {} tokens and more are sent the experts that are off the card; "
                                  "shorter ones leave them to the crew.",
                                  grouped(plan.stream_rows)));
  return text;
}

std::string compared(std::string_view label, const Plan& plan) {
  if (!plan.fits()) return fmt::format("  {:<28}does not fit\n", label);
  const RoundTime* best = plan.best_round();
  return fmt::format("  {:<28}{:>8}{:>8.1f} %{:>9.1f}{:>10}{:>9}\n", label, grouped(plan.slots),
                     kPercent * plan.hit_rate, plan.misses_per_row,
                     best == nullptr ? "-" : fmt::format("{:.2f}", kMilli * best->total),
                     best == nullptr ? "-" : fmt::format("{:.1f}", best->tokens_per_second()));
}

std::string what_if_section(const PlanReport& report) {
  if (report.what_ifs.empty()) return {};
  std::string text =
      fmt::format("\n{:<30}{:>8}{:>10}{:>9}{:>10}{:>9}\n", "What if", "slots", "hits", "misses", "ms/round", "tok/s");
  text += compared("as planned", report.plan);
  for (const WhatIf& other : report.what_ifs) {
    text += compared(other.label, other.plan);
    if (!other.plan.fits()) text += wrapped("    ", other.plan.shortfall);
  }
  return text;
}

// ---- JSON

std::string_view memory_name(Memory memory) {
  return memory == Memory::kVram ? "vram" : memory == Memory::kRam ? "ram" : "disk";
}

Json round_json(const RoundTime& r) {
  return {{"drafts", r.rows - 1}, {"rows", r.rows},
          {"seconds", r.total},   {"dense", r.dense},
          {"experts", r.experts}, {"head", r.head},
          {"draft", r.draft},     {"sampling", r.sampling},
          {"card", r.card},       {"crew", r.crew},
          {"wait", r.wait},       {"handoff", r.handoff},
          {"disk", r.disk},       {"fetched", r.fetched},
          {"tokens", r.tokens},   {"tokens_per_second", r.tokens_per_second()}};
}

Json outlook_json(const std::optional<Plan::Outlook>& outlook) {
  if (!outlook) return nullptr;
  return {{"hit_rate", outlook->hit_rate},
          {"disk_per_token", outlook->disk_per_row},
          {"tokens_per_second", outlook->tokens_per_second}};
}

// By bank, those of which is(bank, expert).
template <typename Is>
Json experts_that(const ExpertPlacement& placement, Is&& is) {
  Json banks = Json::array();
  for (int b = 0; b < placement.banks; ++b) {
    Json experts = Json::array();
    for (int e = 0; e < placement.experts; ++e)
      if (is(b, e)) experts.push_back(e);
    banks.push_back(std::move(experts));
  }
  return banks;
}
Json experts_at(const Plan& plan, Place where) {
  return experts_that(plan.placement, [&](int b, int e) { return plan.placement.at(b, e) == where; });
}
Json experts_lent(const Plan& plan) {
  const ExpertPlacement generating = plan.generating();
  return experts_that(generating, [&](int b, int e) { return generating.at(b, e) != plan.placement.at(b, e); });
}

Json json_of(const Plan& plan) {
  Json items = Json::array(), rounds = Json::array();
  for (const PlanItem& item : plan.items)
    items.push_back(
        {{"memory", memory_name(item.memory)}, {"what", item.what}, {"bytes", item.bytes}, {"note", item.note}});
  for (const RoundTime& round : plan.rounds) rounds.push_back(round_json(round));
  return {{"fits", plan.fits()},
          {"shortfall", plan.shortfall},
          {"warnings", plan.warnings},
          {"limit", plan.limit},
          {"vram", {{"budget", plan.vram_budget}, {"used", plan.vram_used}, {"reserve", plan.vram_reserve}}},
          {"ram", {{"budget", plan.ram_budget}, {"used", plan.ram_used}, {"reserve", plan.ram_reserve}}},
          {"items", std::move(items)},
          {"experts", plan.placement.place.size()},
          {"slots", plan.slots},
          {"slots_by_bank", plan.slots_by_bank},
          {"lent_bytes", plan.lent_bytes},
          {"lent_in_cache", plan.lent_in_cache},
          {"cache_empty", outlook_json(plan.cache_empty)},
          {"cache_full", outlook_json(plan.cache_full)},
          {"hit_rate", plan.hit_rate},
          {"hit_rate_bytes", plan.hit_rate_bytes},
          {"misses_per_token", plan.misses_per_row},
          {"disk_per_token", plan.disk_per_row},
          {"workers", plan.workers},
          {"stream_rows", plan.stream_rows},
          {"rounds", std::move(rounds)},
          {"tokens_per_second_slowest", plan.slowest},
          {"tokens_per_second_fastest", plan.fastest},
          {"unknown", plan.unknown},
          {"one_gib_more_vram", outlook_json(plan.more_vram)},
          {"one_gib_more_ram", outlook_json(plan.more_ram)}};
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string text =
      wrapped("", fmt::format("{} on {}, policy {}", report.model, report.hardware, report.input.policy.name));
  if (!plan.fits()) text += "\n" + wrapped("Does not fit: ", plan.shortfall);
  text += memory_section(plan, Memory::kVram, report.input.plays_card ? "Played" : "VRAM", plan.vram_budget,
                         plan.vram_used);
  text += memory_section(plan, Memory::kRam, "RAM", plan.ram_budget, plan.ram_used);
  text += memory_section(plan, Memory::kDisk, "Disk", 0, 0);
  if (plan.fits()) text += experts_section(report) + rounds_section(report);
  text += what_if_section(report);
  if (!plan.warnings.empty()) text += "\n";
  for (const std::string& warning : plan.warnings) text += wrapped("Warning: ", warning);
  return text;
}

std::string explain_layer(const PlanReport& report, int bank) {
  const ExpertPlacement placement = report.plan.generating();
  CHECK(bank >= 0 && bank < placement.banks, "layer {} of {}", bank, placement.banks);
  std::vector<int> on, off;
  for (int e = 0; e < placement.experts; ++e) (placement.at(bank, e) == Place::kCard ? on : off).push_back(e);
  const auto share = [&](int e) { return kPercent * report.input.shares.at(bank, e); };
  const auto hotter = [&](int a, int b) { return share(a) > share(b); };
  std::stable_sort(on.begin(), on.end(), hotter);
  std::stable_sort(off.begin(), off.end(), hotter);
  double hits = 0;
  for (const int e : on) hits += share(e);
  const bool draft = bank == report.input.model.shape.layers;
  std::string text = heading(fmt::format("Layer {}{}", bank, draft ? " (draft block)" : ""),
                             fmt::format("  {} of {} experts on the card, {:.1f} % of the layer's routes", on.size(),
                                         placement.experts, hits));
  constexpr std::size_t kPerLine = 6;
  for (std::size_t i = 0; i < on.size(); ++i) {
    text += fmt::format("{}{:>5}{:>7.2f} %", i % kPerLine == 0 ? " " : "", on[i], share(on[i]));
    if (i % kPerLine == kPerLine - 1 || i + 1 == on.size()) text += "\n";
  }
  if (!on.empty()) text += fmt::format("  {:<24}{:>5}{:>7.2f} %\n", "coldest on the card", on.back(), share(on.back()));
  if (!off.empty()) text += fmt::format("  {:<24}{:>5}{:>7.2f} %\n", "hottest off it", off.front(), share(off.front()));
  if (const auto lent = std::ssize(on) - report.plan.slots_by_bank[static_cast<std::size_t>(bank)]; lent > 0)
    text += fmt::format("  {} of them in lent memory\n", lent);
  return text;
}

std::string plan_json(const PlanReport& report) {
  const PlanInput& input = report.input;
  Json json{{"model", report.model},          {"hardware", report.hardware},
            {"policy", input.policy.name},    {"card", input.card ? "gpu" : input.plays_card ? "played" : "none"},
            {"context", input.state.context}, {"kv_bits", input.state.kv_bits}};
  json.update(json_of(report.plan));
  json["on_card"] = experts_at(report.plan, Place::kCard);
  json["on_disk"] = experts_at(report.plan, Place::kDisk);
  json["lent"] = experts_lent(report.plan);
  Json others = Json::array();
  for (const WhatIf& other : report.what_ifs) {
    Json entry{{"what_if", other.label}};
    entry.update(json_of(other.plan));
    others.push_back(std::move(entry));
  }
  json["what_if"] = std::move(others);
  return json.dump(2) + "\n";
}

}  // namespace tandem
