#include "placement/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "placement/check.h"
#include "placement/units.h"
#include "placement/yaml_reader.h"

namespace tandem {
namespace {

// Far above any model; the true bounds are checked against the model (check_policy_against).
constexpr int kMostLayer = 999, kMostExpert = 9999, kMostSlots = 1000000;
constexpr std::int64_t kMostContext = std::int64_t{1} << 30;

const std::vector<std::string> kObjectives{"round_time", "hit_rate"};
const std::vector<std::string> kAdaptModes{"off", "lru", "lfu", "swaps"};
const std::vector<std::string> kFetchAhead{"auto", "on", "off"};
const std::vector<std::string> kNgramPlaces{"auto", "ram", "disk"};
const std::vector<std::string> kCrewCores{"performance", "all"};
const std::vector<std::string> kKvFormats{"f16", "f32"};

const YamlValue& later(const YamlValue& a, const YamlValue& b) {
  return a.line() > b.line() ? a : b;
}

// What is used and what of it is left alone.
void check_reserve(const YamlMap& map, std::string_view key, const std::optional<std::int64_t>& use,
                   const std::optional<std::int64_t>& reserve) {
  if (!use || !reserve || *use == 0 || *reserve < *use) return;
  const YamlValue& limit = map.need(key);
  const YamlValue& left = map.need(fmt::format("{}_reserve", key));
  later(limit, left)
      .fail_found(fmt::format("a reserve smaller than {}", key),
                  fmt::format("{} {} and reserve {}", key, format_bytes(*use), format_bytes(*reserve)),
                  fmt::format("raise {0} or lower {0}_reserve", key));
}

const std::vector<std::string> kMemoryKeys{"vram",  "vram_reserve",       "ram",          "ram_reserve",
                                           "slots", "lend_prompt_memory", "lend_kv_cache"};

void read_memory(const YamlValue& value, Policy::Memory& memory) {
  const YamlMap map(value, kMemoryKeys);
  map.read("vram", memory.vram);
  map.read("vram_reserve", memory.vram_reserve);
  map.read("ram", memory.ram);
  map.read("ram_reserve", memory.ram_reserve);
  map.read("slots", memory.slots, 0, kMostSlots);
  map.read("lend_prompt_memory", memory.lend_prompt_memory);
  map.read("lend_kv_cache", memory.lend_kv_cache);
  if (memory.ram == 0) map.need("ram").fail("auto or a size above 0");
  check_reserve(map, "vram", memory.vram, memory.vram_reserve);
  check_reserve(map, "ram", memory.ram, memory.ram_reserve);
}

void read_census(const YamlValue& value, const std::filesystem::path& folder, Policy& policy) {
  std::set<std::pair<std::filesystem::path, std::string>> seen;
  double weight = 0;
  for (const YamlValue& item : value.list()) {
    const YamlMap map(item, {"file", "domain", "weight"});
    Policy::CensusSource source;
    source.file = (folder / map.need("file").text()).lexically_normal();  // an absolute one stays as it is
    map.read("domain", source.domain);
    map.read("weight", source.weight, 0.0, 1e6);
    if (!seen.emplace(source.file, source.domain).second)
      item.fail_found("each file and domain once", "the same again", "add the weights in one entry");
    weight += source.weight;
    policy.census.push_back(std::move(source));
  }
  if (!policy.census.empty() && weight <= 0)
    value.fail_found("a weight above 0", "weights of 0 only", "raise one, or leave the census out");
}

std::vector<ExpertRange> read_experts(const YamlValue& value) {
  std::vector<ExpertRange> all;
  for (const YamlValue& item : value.list()) {
    const YamlMap map(item, {"layers", "experts"});
    const std::vector<IntRange> layers = map.need("layers").ranges(kMostLayer);
    const std::vector<IntRange> experts = map.need("experts").ranges(kMostExpert);
    for (const IntRange& layer : layers)
      for (const IntRange& expert : experts)
        all.push_back({layer.first, layer.last, expert.first, expert.last, item.where(), item.line()});
  }
  return all;
}

void check_apart(const std::vector<ExpertRange>& pins, const std::vector<ExpertRange>& bans) {
  for (const ExpertRange& pin : pins) {
    for (const ExpertRange& ban : bans) {
      const int layer = std::max(pin.first_layer, ban.first_layer);
      const int expert = std::max(pin.first_expert, ban.first_expert);
      if (layer > std::min(pin.last_layer, ban.last_layer) || expert > std::min(pin.last_expert, ban.last_expert))
        continue;
      const bool pin_later = pin.line > ban.line;
      fail_input(
          "{}: expected experts that are not {} as well, found expert {} of layer {}, {} in line {}. Fix: remove it "
          "from one of the two",
          pin_later ? pin.where : ban.where, pin_later ? "banned" : "pinned", expert, layer,
          pin_later ? "banned" : "pinned", pin_later ? ban.line : pin.line);
    }
  }
}

// Experts of `bank` that the ranges name, each once. Ranges may overlap.
int count_in_bank(const std::vector<ExpertRange>& ranges, int bank) {
  std::vector<std::pair<int, int>> spans;
  for (const ExpertRange& range : ranges)
    if (range.first_layer <= bank && bank <= range.last_layer)
      spans.emplace_back(range.first_expert, range.last_expert);
  std::sort(spans.begin(), spans.end());
  int count = 0, next = 0;  // experts below `next` are counted
  for (const auto& [first, last] : spans) {
    if (last < next) continue;
    count += last - std::max(first, next) + 1;
    next = last + 1;
  }
  return count;
}

int last_layer(const std::vector<ExpertRange>& ranges) {
  int last = -1;
  for (const ExpertRange& range : ranges) last = std::max(last, range.last_layer);
  return last;
}

// A limit of `most` slots, given by the key `limit`, against the experts that have to be on the card.
void check_slots(const YamlValue& limit, std::int64_t most, const YamlMap& experts, const Policy& policy) {
  std::int64_t pinned = 0;
  for (int bank = 0; bank <= last_layer(policy.pins); ++bank) pinned += count_in_bank(policy.pins, bank);
  if (pinned > most)
    later(limit, experts.need("pins"))
        .fail_found("pins that fit the slots",
                    fmt::format("{} pinned expert{} and room for {} (line {})", pinned, pinned == 1 ? "" : "s", most,
                                std::min(limit.line(), experts.need("pins").line())),
                    "pin fewer experts or allow more slots");
  if (policy.floor_per_layer > most)
    later(limit, experts.need("floor_per_layer"))
        .fail_found("a floor that fits the slots",
                    fmt::format("a floor of {} a layer and room for {} (line {})", policy.floor_per_layer, most,
                                std::min(limit.line(), experts.need("floor_per_layer").line())),
                    "lower the floor or allow more slots");
}

void read_expert_rules(const YamlMap& root, Policy& policy) {
  const YamlValue* value = root.find("experts");
  if (value == nullptr) return;
  const YamlMap map(*value, {"pins", "bans", "floor_per_layer"});
  if (const YamlValue* pins = map.find("pins")) policy.pins = read_experts(*pins);
  if (const YamlValue* bans = map.find("bans")) policy.bans = read_experts(*bans);
  map.read("floor_per_layer", policy.floor_per_layer, 0, kMostExpert);
  check_apart(policy.pins, policy.bans);
  const YamlValue* memory = root.find("memory");
  if (memory == nullptr) return;
  const YamlMap limits(*memory, kMemoryKeys);
  if (policy.memory.vram == 0) check_slots(limits.need("vram"), 0, map, policy);
  if (policy.memory.slots) check_slots(limits.need("slots"), *policy.memory.slots, map, policy);
}

void read_adapt(const YamlValue& value, Policy::Adapt& adapt) {
  const YamlMap map(value, {"mode", "swaps_per_round", "half_life_rows", "margin", "save_slots", "fetch_ahead"});
  map.read_word("mode", adapt.mode, kAdaptModes);
  map.read("swaps_per_round", adapt.swaps_per_round, 1, 1000);
  map.read("half_life_rows", adapt.half_life_rows, 1.0, 1e9);
  map.read("margin", adapt.margin, 1.0, 1000.0);
  map.read("save_slots", adapt.save_slots);
  map.read_word("fetch_ahead", adapt.fetch_ahead, kFetchAhead);
}

void read_crew(const YamlValue& value, Policy::Crew& crew) {
  const YamlMap map(value, {"workers", "cores", "pin", "lock_memory"});
  map.read("workers", crew.workers, 1, 1024);
  map.read_word("cores", crew.cores, kCrewCores);
  map.read("pin", crew.pin);
  map.read("lock_memory", crew.lock_memory);
}

void read_drafting(const YamlValue& value, const std::filesystem::path& folder, Policy::Drafting& drafting) {
  const YamlMap map(value, {"mtp", "lookup", "depth", "vocabulary", "vocabulary_from"});
  map.read("mtp", drafting.mtp);
  map.read("lookup", drafting.lookup);
  map.read("depth", drafting.depth, 0, 8);
  map.read("vocabulary", drafting.vocabulary, 0, kMostVocabulary);
  if (const YamlValue* from = map.find("vocabulary_from")) set_vocabulary_source(from->text(), folder, drafting);
  if (drafting.depth.value_or(0) > 0 && !drafting.mtp && !drafting.lookup)
    map.need("depth").fail_found("a source of drafts", "a depth while mtp and lookup are false",
                                 "set one of them to true, or the depth to 0");
}

void read_lossy(const YamlValue& value, Policy::Lossy& lossy) {
  const YamlMap map(value, {"biased_acceptance", "tail_route_skip"});
  map.read("biased_acceptance", lossy.biased_acceptance);
  map.read("tail_route_skip", lossy.tail_route_skip, 0.0, 0.5);
}

}  // namespace

void set_vocabulary_source(std::string_view word, const std::filesystem::path& folder, Policy::Drafting& drafting) {
  drafting.vocabulary_from = word == "file"      ? VocabularySource::kFile
                             : word == "history" ? VocabularySource::kHistory
                                                 : VocabularySource::kText;
  drafting.vocabulary_text.clear();
  if (drafting.vocabulary_from == VocabularySource::kText) drafting.vocabulary_text = folder / word;
}

Policy load_policy(const std::filesystem::path& path) {
  const YamlValue file = read_yaml(path, "policy");
  const YamlMap root(file, {"name", "description", "memory", "objective", "context", "kv", "census", "experts", "adapt",
                            "ngram", "crew", "drafting", "lossy"});
  Policy policy;
  policy.file = path;
  policy.name = path.stem().string();
  root.read("name", policy.name);
  root.read("description", policy.description);
  if (const YamlValue* value = root.find("memory")) read_memory(*value, policy.memory);
  root.read_word("objective", policy.objective, kObjectives);
  if (const YamlValue* value = root.find("context")) policy.context = value->integer_or_auto(1, kMostContext);
  root.read_word("kv", policy.kv, kKvFormats);
  if (const YamlValue* value = root.find("census")) read_census(*value, path.parent_path(), policy);
  read_expert_rules(root, policy);
  if (const YamlValue* value = root.find("adapt")) read_adapt(*value, policy.adapt);
  if (const YamlValue* value = root.find("ngram"))
    YamlMap(*value, {"place"}).read_word("place", policy.ngram_place, kNgramPlaces);
  if (const YamlValue* value = root.find("crew")) read_crew(*value, policy.crew);
  if (const YamlValue* value = root.find("drafting")) read_drafting(*value, path.parent_path(), policy.drafting);
  if (const YamlValue* value = root.find("lossy")) read_lossy(*value, policy.lossy);
  return policy;
}

void check_policy_against(const Policy& policy, int banks, int experts) {
  const std::string file = policy.file.empty() ? "policy " + policy.name : policy.file.string();
  for (const std::vector<ExpertRange>* ranges : {&policy.pins, &policy.bans}) {
    for (const ExpertRange& range : *ranges) {
      const std::string& where = range.where.empty() ? file : range.where;
      if (range.last_layer >= banks)
        fail_input("{}: expected layers from 0 to {} (this model), found {}", where, banks - 1, range.last_layer);
      if (range.last_expert >= experts)
        fail_input("{}: expected experts from 0 to {} (this model), found {}", where, experts - 1, range.last_expert);
    }
  }
  std::int64_t least = 0;  // slots that pins and floor ask for
  for (int bank = 0; bank < banks; ++bank) {
    const int allowed = experts - count_in_bank(policy.bans, bank);
    if (policy.floor_per_layer > allowed)
      fail_input(
          "{}: experts.floor_per_layer: expected at most the {} experts of layer {} that are not banned, found {}. "
          "Fix: lower the floor or ban fewer experts",
          file, allowed, bank, policy.floor_per_layer);
    least += std::max(policy.floor_per_layer, count_in_bank(policy.pins, bank));
  }
  if (policy.memory.slots && least > *policy.memory.slots)
    fail_input(
        "{}: memory.slots: expected at least the {} slots that pins and floor ask for (this model has {} layers with "
        "experts), found {}. Fix: allow more slots, pin fewer experts or lower the floor",
        file, least, banks, *policy.memory.slots);
}

}  // namespace tandem
