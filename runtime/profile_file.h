// What `tandem profile` writes while it runs, so that --resume can go on: the counts so far and what they are of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "placement/census.h"
#include "runtime/profile.h"

namespace tandem {

struct ProfileState {
  std::string run;          // identifies model, texts and settings; another run cannot go on from here
  std::size_t windows = 0;  // done
  std::uint64_t trace_rounds = 0;
  Census census;
};

// Names model, texts, settings: equal for runs that may continue each other.
std::string profile_run_id(std::uint64_t model_fingerprint, const std::vector<ProfileText>& texts,
                           const ProfileOptions& options, bool draft);

std::filesystem::path profile_state_path(const std::filesystem::path& census);  // NAME.partial beside it
void save_profile_state(const std::filesystem::path& path, const ProfileState& state);
// Throws InputError for a file that is no such state.
ProfileState load_profile_state(const std::filesystem::path& path);

}  // namespace tandem
