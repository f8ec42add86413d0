// The tables and examples of docs/policies.md are true.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "placement/check.h"
#include "placement/files.h"
#include "placement/policy.h"
#include "tests/placement/temporary_file.h"

namespace tandem {
namespace {

std::vector<std::string> document_lines() {
  std::istringstream text(read_file(std::string(TANDEM_SOURCE_DIR) + "/docs/policies.md", "document"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

// The rows of the first table whose default is given in backticks, each as a policy of its own: they change nothing.
TEST(PolicyDocument, DefaultsAreThoseOfTheProgram) {
  std::map<std::string, std::string> defaults;
  std::set<std::string> keys;
  for (const std::string& line : document_lines()) {
    if (line.starts_with("## A hardware profile")) break;
    std::smatch match;
    if (!std::regex_match(line, match, std::regex(R"(\| `([a-z_.]+)` \|[^|]*\| (`([^`]+)`|[^|]*) \|.*)"))) continue;
    keys.insert(match[1]);
    if (match[3].matched) defaults[match[1]] = match[3];
  }
  EXPECT_EQ(keys.size(), 34U);
  EXPECT_EQ(defaults.size(), 29U);
  for (const auto& [key, value] : defaults) {
    const std::size_t dot = key.find('.');
    const std::string text = dot == std::string::npos
                                 ? key + ": " + value
                                 : key.substr(0, dot) + ": {" + key.substr(dot + 1) + ": " + value + "}";
    const testing::TemporaryFolder folder;
    const Policy p = load_policy(folder.write("policy.yaml", text)), q;
    SCOPED_TRACE(text);
    EXPECT_EQ(p.memory.vram || p.memory.vram_reserve || p.memory.ram || p.memory.ram_reserve || p.memory.slots, false);
    EXPECT_EQ(p.memory.lend_prompt_memory, q.memory.lend_prompt_memory);
    EXPECT_EQ(p.memory.lend_kv_cache, q.memory.lend_kv_cache);
    EXPECT_EQ(p.objective, q.objective);
    EXPECT_EQ(p.context, q.context);
    EXPECT_EQ(p.kv, q.kv);
    EXPECT_EQ(p.floor_per_layer, q.floor_per_layer);
    EXPECT_EQ(p.adapt.mode, q.adapt.mode);
    EXPECT_EQ(p.adapt.swaps_per_round, q.adapt.swaps_per_round);
    EXPECT_EQ(p.adapt.half_life_rows, q.adapt.half_life_rows);
    EXPECT_EQ(p.adapt.margin, q.adapt.margin);
    EXPECT_EQ(p.adapt.save_slots, q.adapt.save_slots);
    EXPECT_EQ(p.adapt.fetch_ahead, q.adapt.fetch_ahead);
    EXPECT_EQ(p.ngram_place, q.ngram_place);
    EXPECT_EQ(p.crew.workers, q.crew.workers);
    EXPECT_EQ(p.crew.cores, q.crew.cores);
    EXPECT_EQ(p.crew.pin, q.crew.pin);
    EXPECT_EQ(p.crew.lock_memory, q.crew.lock_memory);
    EXPECT_EQ(p.drafting.mtp, q.drafting.mtp);
    EXPECT_EQ(p.drafting.lookup, q.drafting.lookup);
    EXPECT_EQ(p.drafting.depth, q.drafting.depth);
    EXPECT_EQ(p.drafting.vocabulary, q.drafting.vocabulary);
    EXPECT_EQ(p.drafting.vocabulary_from, q.drafting.vocabulary_from);
    EXPECT_EQ(p.lossy.any(), false);
  }
}

// A block of YAML loads, or the block after it is the message.
TEST(PolicyDocument, ExamplesAreTrue) {
  const std::vector<std::string> lines = document_lines();
  int loaded = 0, refused = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != "```yaml") continue;
    std::string text;
    for (++i; lines[i] != "```"; ++i) text += lines[i] + "\n";
    const testing::TemporaryFolder folder;
    std::string message;
    try {
      load_policy(folder.write("policy.yaml", text));
      ++loaded;
      continue;
    } catch (const InputError& error) {
      message = std::string(error.what()).substr(folder.path().string().size() + 1);
    }
    ++refused;
    ASSERT_LT(i + 3, lines.size());
    EXPECT_EQ(lines[i + 1] + lines[i + 3], "``````");
    EXPECT_EQ(lines[i + 2], message);
  }
  EXPECT_EQ(loaded, 1);
  EXPECT_EQ(refused, 5);
}

}  // namespace
}  // namespace tandem
