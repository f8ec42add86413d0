// Policy files: every key, every default, every refusal with its exact words, line and column.
#include "placement/policy.h"

#include <gtest/gtest.h>

#include "placement/check.h"
#include "placement/units.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

Policy load(const std::string& text) {
  const testing::TemporaryFolder folder;
  return load_policy(folder.write("p.yaml", text));
}

// The message that refuses `text`, without the folder's name; empty when it is taken.
std::string refusal(const std::string& text) {
  const testing::TemporaryFolder folder;
  try {
    load_policy(folder.write("p.yaml", text));
  } catch (const InputError& error) {
    std::string message = error.what();
    const std::string prefix = folder.path().string() + "/";
    EXPECT_EQ(message.find(prefix), 0U) << message;
    return message.substr(std::min(prefix.size(), message.size()));
  }
  return {};
}

TEST(Policy, DefaultsOfAnEmptyMap) {
  const Policy p = load("{}\n");
  EXPECT_EQ(p.name, "p");  // the file's name
  EXPECT_EQ(p.description, "");
  EXPECT_EQ(p.file.filename(), "p.yaml");
  EXPECT_FALSE(p.memory.vram || p.memory.vram_reserve || p.memory.ram || p.memory.ram_reserve || p.memory.slots);
  EXPECT_TRUE(p.memory.lend_prompt_memory);
  EXPECT_TRUE(p.memory.lend_kv_cache);
  EXPECT_EQ(p.objective, Objective::kRoundTime);
  EXPECT_FALSE(p.context.has_value());
  EXPECT_EQ(p.kv, KvFormat::kF16);
  EXPECT_TRUE(p.census.empty() && p.pins.empty() && p.bans.empty());
  EXPECT_EQ(p.floor_per_layer, 0);
  EXPECT_EQ(p.adapt.mode, AdaptMode::kSwaps);
  EXPECT_EQ(p.adapt.swaps_per_round, 2);
  EXPECT_EQ(p.adapt.half_life_rows, 2000);
  EXPECT_EQ(p.adapt.margin, 1.3);
  EXPECT_FALSE(p.adapt.save_slots);
  EXPECT_EQ(p.adapt.fetch_ahead, FetchAhead::kAuto);
  EXPECT_EQ(p.ngram_place, NgramPlace::kAuto);
  EXPECT_FALSE(p.crew.workers.has_value());
  EXPECT_EQ(p.crew.cores, CrewCores::kPerformance);
  EXPECT_TRUE(p.crew.pin && p.crew.lock_memory);
  EXPECT_TRUE(p.drafting.mtp && p.drafting.lookup);
  EXPECT_FALSE(p.drafting.depth.has_value() || p.drafting.vocabulary.has_value());
  EXPECT_EQ(p.drafting.vocabulary_from, VocabularySource::kFile);
  EXPECT_FALSE(p.lossy.any());
}

TEST(Policy, EveryKey) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("deep/all.yaml", R"(name: mine
description: "two words: a colon"
memory:
  vram: 20GiB
  vram_reserve: 512MiB
  ram: 15 GB
  ram_reserve: 4G
  slots: 7000
  lend_prompt_memory: false
  lend_kv_cache: false
objective: hit_rate
context: 65536
kv: f32
census:
  - file: code.csv
  - {file: ../other/chat.csv, domain: chat, weight: 0.25}
  - file: /abs/x.csv
    domain: prose
experts:
  pins:
    - layers: 0-3
      experts: [1, 5, 7-9]
    - {layers: [10, 12-13], experts: 40}
  bans:
    - {layers: 5, experts: 0-500}
  floor_per_layer: 16
adapt: {mode: lfu, swaps_per_round: 9, half_life_rows: 1e3, margin: 2, save_slots: true, fetch_ahead: off}
ngram: {place: disk}
crew: {workers: 6, cores: all, pin: false, lock_memory: false}
drafting: {mtp: false, lookup: false, depth: 0, vocabulary: 32768, vocabulary_from: letters.txt}
lossy: {biased_acceptance: true, tail_route_skip: 0.125}
)");
  const Policy p = load_policy(path);
  EXPECT_EQ(p.name, "mine");
  EXPECT_EQ(p.description, "two words: a colon");
  EXPECT_EQ(p.file, path);
  EXPECT_EQ(p.memory.vram, 20 * kGiB);
  EXPECT_EQ(p.memory.vram_reserve, 512 * kMiB);
  EXPECT_FALSE(p.memory.lend_prompt_memory);
  EXPECT_FALSE(p.memory.lend_kv_cache);
  EXPECT_EQ(p.memory.ram, 15000000000);
  EXPECT_EQ(p.memory.ram_reserve, 4 * kGiB);
  EXPECT_EQ(p.memory.slots, 7000);
  EXPECT_EQ(p.objective, Objective::kHitRate);
  EXPECT_EQ(p.context, 65536);
  EXPECT_EQ(p.kv, KvFormat::kF32);
  ASSERT_EQ(p.census.size(), 3U);
  EXPECT_EQ(p.census[0].file, folder.path() / "deep/code.csv");
  EXPECT_EQ(p.census[0].domain, "");
  EXPECT_EQ(p.census[0].weight, 1.0);
  EXPECT_EQ(p.census[1].file, folder.path() / "other/chat.csv");
  EXPECT_EQ(p.census[1].domain, "chat");
  EXPECT_EQ(p.census[1].weight, 0.25);
  EXPECT_EQ(p.census[2].file, "/abs/x.csv");
  const auto numbers = [](const std::vector<ExpertRange>& ranges) {
    std::vector<std::vector<int>> all;
    for (const ExpertRange& r : ranges) all.push_back({r.first_layer, r.last_layer, r.first_expert, r.last_expert});
    return all;
  };
  EXPECT_EQ(numbers(p.pins), (std::vector<std::vector<int>>{
                                 {0, 3, 1, 1}, {0, 3, 5, 5}, {0, 3, 7, 9}, {10, 10, 40, 40}, {12, 13, 40, 40}}));
  EXPECT_EQ(numbers(p.bans), (std::vector<std::vector<int>>{{5, 5, 0, 500}}));
  EXPECT_EQ(p.pins[3].where, path.string() + ":23:7: experts.pins[1]");
  EXPECT_EQ(p.pins[3].line, 23);
  EXPECT_EQ(p.floor_per_layer, 16);
  EXPECT_EQ(p.adapt.mode, AdaptMode::kLfu);
  EXPECT_EQ(p.adapt.swaps_per_round, 9);
  EXPECT_EQ(p.adapt.half_life_rows, 1000);
  EXPECT_EQ(p.adapt.margin, 2);
  EXPECT_TRUE(p.adapt.save_slots);
  EXPECT_EQ(p.adapt.fetch_ahead, FetchAhead::kOff);
  EXPECT_EQ(p.ngram_place, NgramPlace::kDisk);
  EXPECT_EQ(p.crew.workers, 6);
  EXPECT_EQ(p.crew.cores, CrewCores::kAll);
  EXPECT_FALSE(p.crew.pin || p.crew.lock_memory);
  EXPECT_FALSE(p.drafting.mtp || p.drafting.lookup);
  EXPECT_EQ(p.drafting.depth, 0);
  EXPECT_EQ(p.drafting.vocabulary, 32768);
  EXPECT_EQ(p.drafting.vocabulary_from, VocabularySource::kText);
  EXPECT_EQ(p.drafting.vocabulary_text, folder.path() / "deep/letters.txt");
  EXPECT_TRUE(p.lossy.biased_acceptance);
  EXPECT_EQ(p.lossy.tail_route_skip, 0.125);
}

TEST(Policy, EveryWord) {
  EXPECT_EQ(load("objective: round_time").objective, Objective::kRoundTime);
  EXPECT_EQ(load("adapt: {mode: off}").adapt.mode, AdaptMode::kOff);
  EXPECT_EQ(load("adapt: {mode: lru}").adapt.mode, AdaptMode::kLru);
  EXPECT_EQ(load("adapt: {mode: swaps}").adapt.mode, AdaptMode::kSwaps);
  EXPECT_EQ(load("ngram: {place: auto}").ngram_place, NgramPlace::kAuto);
  EXPECT_EQ(load("ngram: {place: ram}").ngram_place, NgramPlace::kRam);
  EXPECT_EQ(load("crew: {cores: performance}").crew.cores, CrewCores::kPerformance);
  EXPECT_EQ(load("kv: f16").kv, KvFormat::kF16);
}

TEST(Policy, AutoAndEmptySections) {
  const Policy p = load(
      "memory: {vram: auto, vram_reserve: auto, ram: auto, ram_reserve: auto, slots: auto}\n"
      "context: auto\ncrew: {workers: auto}\ndrafting: {depth: auto, vocabulary: auto}\ncensus:\nexperts:\n  "
      "pins:\nlossy:\n");
  EXPECT_FALSE(p.memory.vram || p.memory.vram_reserve || p.memory.ram || p.memory.ram_reserve || p.memory.slots);
  EXPECT_FALSE(p.context || p.crew.workers || p.drafting.depth || p.drafting.vocabulary);
  EXPECT_TRUE(p.census.empty() && p.pins.empty());
}

TEST(Policy, Bounds) {
  EXPECT_EQ(load("memory: {vram: 0, slots: 0}").memory.vram, 0);
  EXPECT_EQ(load("drafting: {depth: 8}").drafting.depth, 8);
  EXPECT_EQ(load("drafting: {mtp: true, depth: 0}").drafting.depth, 0);
  EXPECT_EQ(load("drafting: {vocabulary: 0}").drafting.vocabulary, 0);
  EXPECT_EQ(load("drafting: {vocabulary_from: file}").drafting.vocabulary_from, VocabularySource::kFile);
  const Policy::Drafting by_history = load("drafting: {vocabulary: 1, vocabulary_from: history}").drafting;
  EXPECT_EQ(by_history.vocabulary_from, VocabularySource::kHistory);
  EXPECT_TRUE(by_history.vocabulary_text.empty());
  EXPECT_EQ(load("lossy: {tail_route_skip: 0.5}").lossy.tail_route_skip, 0.5);
  EXPECT_EQ(load("crew: {workers: 1024}").crew.workers, 1024);
  EXPECT_EQ(load("memory: {vram: 2GiB, vram_reserve: 2047MiB}").memory.vram, 2 * kGiB);
  // Pins that just fit, in overlapping ranges that are counted once.
  EXPECT_EQ(load("memory: {slots: 6}\n"
                 "experts: {pins: [{layers: 0-1, experts: [0-1, 1-2]}, {layers: 1, experts: 2}]}")
                .pins.size(),
            3U);
  EXPECT_EQ(load("memory: {slots: 4}\nexperts: {floor_per_layer: 4}").floor_per_layer, 4);
}

struct Refusal {
  const char* text;
  const char* message;
};

TEST(Policy, RefusesWhatIsNoPolicy) {
  const Refusal cases[] = {
      {"", "p.yaml: expected a policy, found an empty file"},
      {"# only a comment\n\n", "p.yaml: expected a policy, found an empty file"},
      {"---\n...\n", "p.yaml: expected a policy, found an empty file"},
      {"hello\n", "p.yaml:1:1: expected keys and values, found \"hello\". Fix: write KEY: VALUE"},
      {"- a\n", "p.yaml:1:1: expected keys and values, found a list. Fix: write KEY: VALUE"},
      {"kv: f16\n---\nkv: f32\n",
       "p.yaml: expected one document, found another. Fix: remove everything from the second --- on"},
      {"kv: [f16\n", "p.yaml:2:1: expected YAML, found a mistake: end of sequence flow not found"},
      {"kv: f16\n memory: 3\n", "p.yaml:2:8: expected YAML, found a mistake: illegal map value"},
      {"kv: f16\nkv: f32\n",
       "p.yaml:2:1: expected each key once, found \"kv\" again (it is in line 1). Fix: remove one of the two"},
      {"crew:\n  pin: true\n  cores: all\n  pin: true\n",
       "p.yaml:4:3: crew: expected each key once, found \"pin\" again (it is in line 2). Fix: remove one of the two"},
      {"experts: &e\n  pins: [*e]\n",
       "p.yaml:1:10: experts: expected a plain value, found an anchor. Fix: write the value out where it is needed"},
      {"kv: f16\nobjective: &o round_time\n",
       "p.yaml:2:12: objective: expected a plain value, found an anchor. Fix: write the value out where it is needed"},
      {"kv: !!str f16\n",
       "p.yaml:1:5: kv: expected a plain value, found the tag tag:yaml.org,2002:str. Fix: leave the tag out"},
      {"[a, b]: 1\n", "p.yaml:1:1: expected a key, found a list. Fix: write KEY: VALUE"},
      {": 1\n", "p.yaml:1:1: expected a key, found nothing. Fix: write KEY: VALUE"},
  };
  for (const Refusal& c : cases) EXPECT_EQ(refusal(c.text), c.message) << c.text;
}

TEST(Policy, RefusesUnknownKeys) {
  const Refusal cases[] = {
      {"kv: f16\nobjectiv: hit_rate\n",
       "p.yaml:2:1: expected a known key, found \"objectiv\". Fix: did you mean objective?"},
      {"<<: {kv: f16}\n",
       "p.yaml:1:1: expected a known key, found \"<<\". Fix: use one of name, description, memory, objective, context, "
       "kv, census, experts, adapt, ngram, crew, drafting, lossy"},
      {"memory:\n  vram: 4GiB\n  vram_reserv: 1GiB\n",
       "p.yaml:3:3: memory: expected a known key, found \"vram_reserv\". Fix: did you mean vram_reserve?"},
      {"census:\n  - file: a\n    wieght: 2\n",
       "p.yaml:3:5: census[0]: expected a known key, found \"wieght\". Fix: did you mean weight?"},
      {"experts:\n  pin: []\n", "p.yaml:2:3: experts: expected a known key, found \"pin\". Fix: did you mean pins?"},
      {"experts:\n  pins:\n    - layer: 1\n",
       "p.yaml:3:7: experts.pins[0]: expected a known key, found \"layer\". Fix: did you mean layers?"},
      {"adapt: {swap: 1}\n",
       "p.yaml:1:9: adapt: expected a known key, found \"swap\". Fix: did you mean swaps_per_round?"},
      {"ngram: {where: ram}\n", "p.yaml:1:9: ngram: expected a known key, found \"where\". Fix: use one of place"},
      {"crew: {threads: 8}\n",
       "p.yaml:1:8: crew: expected a known key, found \"threads\". Fix: use one of workers, cores, pin, lock_memory"},
      {"drafting: {dept: 8}\n",
       "p.yaml:1:12: drafting: expected a known key, found \"dept\". Fix: did you mean depth?"},
      {"lossy: {tail_skip: 0}\n",
       "p.yaml:1:9: lossy: expected a known key, found \"tail_skip\". Fix: did you mean tail_route_skip?"},
  };
  for (const Refusal& c : cases) EXPECT_EQ(refusal(c.text), c.message) << c.text;
}

TEST(Policy, RefusesWrongValues) {
  const Refusal cases[] = {
      {"name:\n", "p.yaml:1:1: name: expected a text, found nothing"},
      {"name: ''\n", "p.yaml:1:7: name: expected a text, found \"\""},
      {"name: [a]\n", "p.yaml:1:7: name: expected a text, found a list"},
      {"memory: 24GiB\n", "p.yaml:1:9: memory: expected keys and values, found \"24GiB\". Fix: write KEY: VALUE"},
      {"memory:\n  vram: 24 Gigs\n",
       "p.yaml:2:9: memory.vram: expected auto or a size such as 24GiB, 512MiB or 1.5GB, found \"24 Gigs\""},
      {"memory:\n  vram: \"auto\"\n",
       "p.yaml:2:9: memory.vram: expected auto or a size such as 24GiB, 512MiB or 1.5GB, found \"auto\""},
      {"memory:\n  ram: 64\n",
       "p.yaml:2:8: memory.ram: expected a size with its unit, found \"64\". Fix: 64GiB, 64MiB or, for single bytes, "
       "64B"},
      {"memory: {ram: 0}\n", "p.yaml:1:15: memory.ram: expected auto or a size above 0, found \"0\""},
      {"memory: {ram: }\n",
       "p.yaml:1:10: memory.ram: expected auto or a size such as 24GiB, 512MiB or 1.5GB, found "
       "nothing"},
      {"memory: {slots: -1}\n",
       "p.yaml:1:17: memory.slots: expected auto or a whole number from 0 to 1000000, found \"-1\""},
      {"memory: {slots: many}\n",
       "p.yaml:1:17: memory.slots: expected auto or a whole number from 0 to 1000000, found \"many\""},
      {"memory: {slots: 1.5}\n",
       "p.yaml:1:17: memory.slots: expected auto or a whole number from 0 to 1000000, found \"1.5\""},
      {"objective: hitrate\n",
       "p.yaml:1:12: objective: expected round_time or hit_rate, found \"hitrate\". Fix: did you mean hit_rate?"},
      {"context: 0\n", "p.yaml:1:10: context: expected auto or a whole number from 1 to 1073741824, found \"0\""},
      {"context: 64K\n", "p.yaml:1:10: context: expected auto or a whole number from 1 to 1073741824, found \"64K\""},
      {"context: 99999999999999999999\n",
       "p.yaml:1:10: context: expected auto or a whole number from 1 to 1073741824, found \"99999999999999999999\""},
      {"kv: int8\n", "p.yaml:1:5: kv: expected f16 or f32, found \"int8\""},
      {"census: a.csv\n", "p.yaml:1:9: census: expected a list, found \"a.csv\". Fix: begin each element with a dash"},
      {"census: [a.csv]\n", "p.yaml:1:10: census[0]: expected keys and values, found \"a.csv\". Fix: write KEY: VALUE"},
      {"census:\n  - weight: 1\n", "p.yaml:2:5: census[0]: expected the key file, found none. Fix: add it"},
      {"census:\n  - {file: a, weight: -1}\n",
       "p.yaml:2:23: census[0].weight: expected a number from 0 to 1000000, found \"-1\""},
      {"experts: {pins: [{layers: 3}]}\n",
       "p.yaml:1:18: experts.pins[0]: expected the key experts, found none. Fix: add it"},
      {"experts: {pins: [{layers: 3-1, experts: 0}]}\n",
       "p.yaml:1:27: experts.pins[0].layers: expected numbers from 0 to 999 and ranges of them, such as 5, 0-3 or [1, "
       "5, 7-9], found \"3-1\""},
      {"experts:\n  bans:\n    - layers: 0\n      experts: [1, x]\n",
       "p.yaml:4:20: experts.bans[0].experts[1]: expected numbers from 0 to 9999 and ranges of them, such as 5, 0-3 or "
       "[1, 5, 7-9], found \"x\""},
      {"experts: {pins: [{layers: [], experts: 0}]}\n",
       "p.yaml:1:27: experts.pins[0].layers: expected numbers from 0 to 999 and ranges of them, such as 5, 0-3 or [1, "
       "5, 7-9], found a list"},
      {"experts: {pins: [{layers: 0-1000, experts: 0}]}\n",
       "p.yaml:1:27: experts.pins[0].layers: expected numbers from 0 to 999 and ranges of them, such as 5, 0-3 or [1, "
       "5, 7-9], found \"0-1000\""},
      {"experts: {floor_per_layer: -2}\n",
       "p.yaml:1:28: experts.floor_per_layer: expected a whole number from 0 to 9999, found \"-2\""},
      {"adapt: {mode: swap}\n",
       "p.yaml:1:15: adapt.mode: expected off, lru, lfu or swaps, found \"swap\". Fix: did you mean swaps?"},
      {"adapt: {swaps_per_round: 0}\n",
       "p.yaml:1:26: adapt.swaps_per_round: expected a whole number from 1 to 1000, found \"0\""},
      {"adapt: {half_life_rows: 0}\n",
       "p.yaml:1:25: adapt.half_life_rows: expected a number from 1 to 1000000000, found \"0\""},
      {"adapt: {margin: 0.9}\n", "p.yaml:1:17: adapt.margin: expected a number from 1 to 1000, found \"0.9\""},
      {"adapt: {margin: nan}\n", "p.yaml:1:17: adapt.margin: expected a number from 1 to 1000, found \"nan\""},
      {"adapt: {save_slots: yes}\n", "p.yaml:1:21: adapt.save_slots: expected true or false, found \"yes\""},
      {"ngram: {place: ssd}\n", "p.yaml:1:16: ngram.place: expected auto, ram or disk, found \"ssd\""},
      {"crew: {workers: 0}\n",
       "p.yaml:1:17: crew.workers: expected auto or a whole number from 1 to 1024, found \"0\""},
      {"crew: {cores: perf}\n",
       "p.yaml:1:15: crew.cores: expected performance or all, found \"perf\". Fix: did you mean performance?"},
      {"crew: {pin: \"true\"}\n", "p.yaml:1:13: crew.pin: expected true or false, found \"true\""},
      {"drafting: {vocabulary: -1}\n",
       "p.yaml:1:24: drafting.vocabulary: expected auto or a whole number from 0 to 16777216, found \"-1\""},
      {"drafting: {vocabulary: off}\n",
       "p.yaml:1:24: drafting.vocabulary: expected auto or a whole number from 0 to 16777216, found \"off\""},
      {"drafting: {depth: 9}\n",
       "p.yaml:1:19: drafting.depth: expected auto or a whole number from 0 to 8, found \"9\""},
      {"lossy: {tail_route_skip: 0.6}\n",
       "p.yaml:1:26: lossy.tail_route_skip: expected a number from 0 to 0.5, found \"0.6\""},
      {"lossy: {biased_acceptance: 1}\n", "p.yaml:1:28: lossy.biased_acceptance: expected true or false, found \"1\""},
  };
  for (const Refusal& c : cases) EXPECT_EQ(refusal(c.text), c.message) << c.text;
}

TEST(Policy, RefusesContradictionsAtTheSecondKey) {
  const Refusal cases[] = {
      {"experts:\n  pins:\n    - {layers: 0-3, experts: 5}\n  bans:\n    - {layers: 9, experts: 5}\n"
       "    - {layers: 3-4, experts: 0-9}\n",
       "p.yaml:6:7: experts.bans[1]: expected experts that are not pinned as well, found expert 5 of layer 3, pinned "
       "in "
       "line 3. Fix: remove it from one of the two"},
      {"experts:\n  bans:\n    - {layers: 2, experts: 7}\n  pins:\n    - {layers: 2, experts: 7}\n",
       "p.yaml:5:7: experts.pins[0]: expected experts that are not banned as well, found expert 7 of layer 2, banned "
       "in "
       "line 3. Fix: remove it from one of the two"},
      {"memory:\n  slots: 0\nexperts:\n  pins:\n    - {layers: 0, experts: 1}\n",
       "p.yaml:5:5: experts.pins: expected pins that fit the slots, found 1 pinned expert and room for 0 (line 2). "
       "Fix: pin fewer experts or allow more slots"},
      {"experts:\n  pins:\n    - {layers: 0-1, experts: 1-3}\nmemory:\n  slots: 5\n",
       "p.yaml:5:10: memory.slots: expected pins that fit the slots, found 6 pinned experts and room for 5 (line 3). "
       "Fix: pin fewer experts or allow more slots"},
      {"memory: {vram: 0}\nexperts:\n  floor_per_layer: 1\n",
       "p.yaml:3:20: experts.floor_per_layer: expected a floor that fits the slots, found a floor of 1 a layer and "
       "room "
       "for 0 (line 1). Fix: lower the floor or allow more slots"},
      {"memory:\n  slots: 7\nexperts:\n  floor_per_layer: 8\n",
       "p.yaml:4:20: experts.floor_per_layer: expected a floor that fits the slots, found a floor of 8 a layer and "
       "room "
       "for 7 (line 2). Fix: lower the floor or allow more slots"},
      {"memory:\n  vram: 2GiB\n  vram_reserve: 2GiB\n",
       "p.yaml:3:17: memory.vram_reserve: expected a reserve smaller than vram, found vram 2.00 GiB and reserve 2.00 "
       "GiB. Fix: raise vram or lower vram_reserve"},
      {"memory:\n  ram_reserve: 9GiB\n  ram: 8GiB\n",
       "p.yaml:3:8: memory.ram: expected a reserve smaller than ram, found ram 8.00 GiB and reserve 9.00 GiB. Fix: "
       "raise ram or lower ram_reserve"},
      {"census:\n  - file: a\n    domain: d\n  - {file: ./a, domain: d, weight: 2}\n",
       "p.yaml:4:5: census[1]: expected each file and domain once, found the same again. Fix: add the weights in one "
       "entry"},
      {"census:\n  - {file: a, weight: 0}\n",
       "p.yaml:2:3: census: expected a weight above 0, found weights of 0 only. Fix: raise one, or leave the census "
       "out"},
      {"drafting:\n  mtp: false\n  depth: 3\n  lookup: false\n",
       "p.yaml:3:10: drafting.depth: expected a source of drafts, found a depth while mtp and lookup are false. Fix: "
       "set one of them to true, or the depth to 0"},
  };
  for (const Refusal& c : cases) EXPECT_EQ(refusal(c.text), c.message) << c.text;
}

TEST(Policy, NeighboursDoNotContradict) {
  EXPECT_EQ(refusal("experts: {pins: [{layers: 0-3, experts: 5-6}], bans: [{layers: 0-3, experts: 7}, {layers: 4, "
                    "experts: 5}, {layers: 0-3, experts: 0-4}]}"),
            "");
}

TEST(Policy, RefusesFilesThatAreNone) {
  const testing::TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    try {
      load_policy(path);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string root = folder.path().string();
  EXPECT_EQ(message(folder.path()), root + ": expected a policy file, found a folder");
  EXPECT_EQ(message(folder.path() / "none"),
            root + "/none: expected a policy file, found none that can be read: No such file or directory");
  EXPECT_EQ(message(folder.write("large", std::string((1U << 20) + 1, '#'))),
            root + "/large: expected a policy (YAML, at most 1 MiB), found a file of 1.00 MiB");
  EXPECT_EQ(message(folder.write("full", std::string(1U << 20, '#'))),
            root + "/full: expected a policy, found an empty file");
}

std::string refusal_against(const std::string& text, int banks, int experts) {
  Policy policy = load(text);
  const std::string folder = policy.file.parent_path().string() + "/";
  try {
    check_policy_against(policy, banks, experts);
  } catch (const InputError& error) {
    const std::string message = error.what();
    return message.starts_with(folder) ? message.substr(folder.size()) : message;
  }
  return {};
}

TEST(Policy, AgainstAModel) {
  const std::string pins = "experts:\n  pins:\n    - {layers: 0-48, experts: 511}\n";
  EXPECT_EQ(refusal_against(pins, 49, 512), "");
  EXPECT_EQ(refusal_against(pins, 48, 512),
            "p.yaml:3:7: experts.pins[0]: expected layers from 0 to 47 (this model), found 48");
  EXPECT_EQ(refusal_against(pins, 49, 511),
            "p.yaml:3:7: experts.pins[0]: expected experts from 0 to 510 (this model), found 511");
  EXPECT_EQ(refusal_against("experts:\n  bans:\n    - {layers: 4, experts: 0}\n", 4, 8),
            "p.yaml:3:7: experts.bans[0]: expected layers from 0 to 3 (this model), found 4");

  // Bans that overlap: experts 0 to 5 of layer 1, so 2 of 8 are left.
  const std::string bans = "experts:\n  bans: [{layers: 1, experts: [0-4, 2-5, 3]}]\n  floor_per_layer: ";
  EXPECT_EQ(refusal_against(bans + "2", 4, 8), "");
  EXPECT_EQ(refusal_against(bans + "3", 4, 8),
            "p.yaml: experts.floor_per_layer: expected at most the 2 experts of layer 1 that are not banned, found 3. "
            "Fix: lower the floor or ban fewer experts");

  // Pins 0 to 3 in layer 0, floor 2 elsewhere: 4 + 2 + 2 slots.
  const auto slots = [](int n) {
    return "memory: {slots: " + std::to_string(n) +
           "}\nexperts: {pins: [{layers: 0, experts: [0-3, 1-2]}], floor_per_layer: 2}";
  };
  EXPECT_EQ(refusal_against(slots(8), 3, 8), "");
  EXPECT_EQ(refusal_against(slots(7), 3, 8),
            "p.yaml: memory.slots: expected at least the 8 slots that pins and floor ask for (this model has 3 layers "
            "with experts), found 7. Fix: allow more slots, pin fewer experts or lower the floor");
}

TEST(Policy, BuiltInAgainstAModel) {
  Policy policy;
  EXPECT_NO_THROW(check_policy_against(policy, 1, 1));
  policy.pins = {{0, 1, 0, 0}};
  try {
    check_policy_against(policy, 1, 1);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "policy default: expected layers from 0 to 0 (this model), found 1");
  }
}

}  // namespace
}  // namespace tandem
