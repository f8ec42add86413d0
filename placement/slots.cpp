#include "placement/slots.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <string>
#include <string_view>

#include "placement/check.h"
#include "placement/files.h"

namespace tandem {
namespace {

constexpr std::string_view kMagic = "tandem slots 1";

// Lines of a file, with their number for messages.
class Lines {
 public:
  Lines(const std::filesystem::path& path, std::string_view text) : path_(path), rest_(text) {}
  bool done() const { return rest_.empty(); }
  std::string_view next() {
    ++number_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail("a line that ends", "the end of the file");
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    fail_input("{}:{}: expected {}, found {}. Fix: delete the file; the next run writes a new one", path_.string(),
               number_, expected, found);
  }

 private:
  const std::filesystem::path& path_;
  std::string_view rest_;
  int number_ = 0;
};

// The number at the start of `text`, which is removed with one space behind it. -1: there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return value;
}

}  // namespace

void save_slots(const ExpertPlacement& placement, std::uint64_t fingerprint, const std::filesystem::path& path) {
  std::string text =
      fmt::format("{}\nmodel {:016x}\nbanks {} experts {}\n", kMagic, fingerprint, placement.banks, placement.experts);
  for (int b = 0; b < placement.banks; ++b) {
    text += fmt::format("{}:", b);
    for (int e = 0; e < placement.experts; ++e)
      if (placement.at(b, e) == Place::kCard) text += fmt::format(" {}", e);
    text += '\n';
  }
  write_file(path, text);
}

ExpertPlacement restore_slots(const std::filesystem::path& path, const ExpertPlacement& planned,
                              const std::vector<std::int64_t>& expert_bytes, const std::vector<bool>& movable,
                              std::uint64_t fingerprint) {
  const std::string text = read_file(path, "slots");
  Lines lines(path, text);
  if (const std::string_view magic = lines.next(); magic != kMagic)
    lines.fail(fmt::format("\"{}\"", kMagic), fmt::format("\"{}\"", magic.substr(0, 40)));
  const std::string model = fmt::format("model {:016x}", fingerprint);
  if (const std::string_view found = lines.next(); found != model)
    lines.fail(fmt::format("\"{}\", the model that is loaded", model), fmt::format("\"{}\"", found.substr(0, 40)));
  const std::string shape = fmt::format("banks {} experts {}", planned.banks, planned.experts);
  if (const std::string_view found = lines.next(); found != shape)
    lines.fail(fmt::format("\"{}\"", shape), fmt::format("\"{}\"", found.substr(0, 60)));

  const auto index = [&](int b, int e) { return static_cast<std::size_t>(b * planned.experts + e); };
  ExpertPlacement wanted = all_in_ram(planned.banks, planned.experts);
  for (int b = 0; b < planned.banks; ++b) {
    std::string_view line = lines.next();
    if (take_number(line) != b || !line.starts_with(':')) lines.fail(fmt::format("\"{}: ...\"", b), "another line");
    line.remove_prefix(line.starts_with(": ") ? 2 : 1);
    for (int last = -1; !line.empty();) {
      const int e = take_number(line);
      if (e <= last || e >= planned.experts)
        lines.fail(fmt::format("ascending experts below {}", planned.experts), "another value");
      wanted.at(b, last = e) = Place::kCard;
    }
  }
  if (!lines.done()) lines.fail("the end of the file", "more lines");

  // Slots that the plan gives each size, and what is left of them.
  std::map<std::int64_t, int> slots;
  ExpertPlacement result = planned;
  for (int b = 0; b < planned.banks; ++b)
    for (int e = 0; e < planned.experts; ++e)
      if (planned.at(b, e) == Place::kCard && movable[index(b, e)]) {
        ++slots[expert_bytes[static_cast<std::size_t>(b)]];
        result.at(b, e) = Place::kRam;
      }
  const auto fill_from = [&](const ExpertPlacement& source) {
    for (int b = 0; b < planned.banks; ++b)
      for (int e = 0; e < planned.experts; ++e) {
        int& left = slots[expert_bytes[static_cast<std::size_t>(b)]];
        if (left == 0 || source.at(b, e) != Place::kCard || result.at(b, e) != Place::kRam || !movable[index(b, e)])
          continue;
        result.at(b, e) = Place::kCard;
        --left;
      }
  };
  fill_from(wanted);
  fill_from(planned);
  return result;
}

}  // namespace tandem
