// Every file in configs/ is loaded, so that every example works.
#include <gtest/gtest.h>

#include <set>

#include "placement/hardware.h"
#include "placement/policy.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

const fs::path kConfigs = fs::path(TANDEM_SOURCE_DIR) / "configs";

std::set<std::string> yaml_names(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(kConfigs / folder))
    if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
  return names;
}

TEST(Configs, NoYamlElsewhere) {
  for (const auto& entry : fs::recursive_directory_iterator(kConfigs)) {
    const std::string folder = entry.path().parent_path().filename().string();
    const std::string ending = entry.path().extension().string();
    if (ending != ".yaml" && ending != ".yml") continue;
    EXPECT_TRUE(folder == "policies" || folder == "hardware") << entry.path();
  }
}

TEST(Configs, Policies) {
  const std::set<std::string> names = yaml_names("policies");
  for (const char* name :
       {"rtx3090-64gb", "rtx4090-64gb", "rtx5090-128gb", "16gb-card-64gb", "12gb-card-32gb", "cpu-only", "demo"})
    EXPECT_TRUE(names.contains(name)) << name;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Policy policy = load_policy(kConfigs / "policies" / (name + ".yaml"));
    EXPECT_EQ(policy.name, name);
    EXPECT_FALSE(policy.description.empty());
    EXPECT_FALSE(policy.lossy.any());  // nothing that ships changes the text
    for (const Policy::CensusSource& census : policy.census) EXPECT_TRUE(fs::exists(census.file)) << census.file;
    // The full model has 48 layers and a draft block of 512 experts, the one that ships 8 and one of 32.
    const bool small = name == "demo";
    EXPECT_NO_THROW(check_policy_against(policy, small ? 9 : 49, small ? 32 : 512));
  }
  EXPECT_EQ(load_policy(kConfigs / "policies/cpu-only.yaml").memory.vram, 0);
  EXPECT_EQ(load_policy(kConfigs / "policies/demo.yaml").memory.slots, 115);
}

TEST(Configs, Hardware) {
  const std::set<std::string> names = yaml_names("hardware");
  for (const char* name : {"rtx3090-64gb", "h200-16core"}) EXPECT_TRUE(names.contains(name)) << name;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Hardware hardware = load_hardware(kConfigs / "hardware" / (name + ".yaml"));
    EXPECT_EQ(hardware.name, name);
    EXPECT_FALSE(hardware.source.empty());
    EXPECT_TRUE(hardware.gpu.has_value());
  }
  const Hardware reference = load_hardware(kConfigs / "hardware/rtx3090-64gb.yaml");
  EXPECT_EQ(reference.gpu->arch, "sm_86");
  EXPECT_EQ(reference.gpu->copy_gbps, 936);
}

}  // namespace
}  // namespace tandem
