#include "runtime/profile_file.h"

#include <xxhash.h>

#include <nlohmann/json.hpp>

#include "placement/check.h"
#include "placement/files.h"

namespace tandem {

std::string profile_run_id(std::uint64_t model_fingerprint, const std::vector<ProfileText>& texts,
                           const ProfileOptions& options, bool draft) {
  std::string bytes;
  for (const ProfileText& text : texts) {
    bytes += fmt::format("{} {} ", text.domain, text.tokens.size());
    bytes.append(reinterpret_cast<const char*>(text.tokens.data()), text.tokens.size() * sizeof(TokenId));
  }
  return fmt::format("model {:016x}, texts {:016x}, window {}, chunk {}, decode tokens {}, draft head {}",
                     model_fingerprint, XXH3_64bits(bytes.data(), bytes.size()), options.window, options.chunk,
                     options.decode_tokens, draft ? "on" : "off");
}

std::filesystem::path profile_state_path(const std::filesystem::path& census) {
  return census.string() + ".partial";
}

void save_profile_state(const std::filesystem::path& path, const ProfileState& state) {
  const nlohmann::ordered_json json{{"format", "tandem-profile"},
                                    {"version", 1},
                                    {"run", state.run},
                                    {"windows", state.windows},
                                    {"trace_rounds", state.trace_rounds},
                                    {"census", format_census(state.census)}};
  write_file(path, json.dump(1) + "\n");
}

ProfileState load_profile_state(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(read_file(path, "partial profile"), nullptr, false);
  try {
    if (json.at("format") != "tandem-profile" || json.at("version") != 1) throw std::runtime_error("another format");
    ProfileState state;
    state.run = json.at("run").get<std::string>();
    state.windows = json.at("windows").get<std::size_t>();
    state.trace_rounds = json.at("trace_rounds").get<std::uint64_t>();
    state.census = parse_census(json.at("census").get<std::string>(), path.string() + " (census)");
    return state;
  } catch (const InputError&) {
    throw;
  } catch (const std::exception& error) {
    fail_input(
        "{}: expected what an interrupted `tandem profile` leaves behind, found: {}. Fix: remove the file and "
        "start without --resume",
        path.string(), error.what());
  }
}

}  // namespace tandem
