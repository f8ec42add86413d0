#include "placement/census.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <utility>

#include "placement/check.h"
#include "placement/files.h"

namespace tandem {
namespace {

constexpr std::string_view kMagic = "tandem-census", kVersion = "1";
constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode};

std::size_t size_of(const Census& census) {
  return static_cast<std::size_t>(census.banks) * static_cast<std::size_t>(census.experts);
}

// Lines and fields of a file, with the place for messages.
class Reader {
 public:
  Reader(std::string_view text, const std::string& where) : rest_(text), where_(where) {}

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    fail_input("{}:{}: {}. Fix: take the census again with `tandem profile`, or restore the file", where_, number_,
               fmt::format(format, std::forward<Args>(args)...));
  }
  bool at_end() const { return rest_.empty(); }
  // The next line, which has to start with `keyword`.
  void next(std::string_view keyword) {
    ++number_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos)
      fail("expected a line \"{},...\", found {}", keyword,
           rest_.empty() ? "the end of the file" : "a line that is cut off");
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    const std::string_view found = field(keyword);
    if (found != keyword) fail("expected a line \"{},...\", found \"{}\"", keyword, found.substr(0, 40));
  }
  std::string_view field(std::string_view what) {
    if (ended_line()) fail("expected {}, found the end of the line", what);
    const std::size_t end = line_.find(',');
    const std::string_view found = line_.substr(0, end);
    line_ = end == std::string_view::npos ? std::string_view(nullptr, 0) : line_.substr(end + 1);
    return found;
  }
  std::string_view whole_rest() { return std::exchange(line_, std::string_view(nullptr, 0)); }
  std::uint64_t number(std::string_view what, std::uint64_t low, std::uint64_t high, int base = 10) {
    const std::string_view text = field(what);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high)
      fail("expected {} ({}), found \"{}\"", what,
           base == 16 ? std::string("a hexadecimal number") : fmt::format("a number from {} to {}", low, high),
           text.substr(0, 40));
    return value;
  }
  void end_line() {
    if (!ended_line()) fail("expected the end of the line, found \"{}\"", line_.substr(0, 40));
  }

 private:
  bool ended_line() const { return line_.data() == nullptr; }
  std::string_view rest_, line_;
  const std::string& where_;
  std::size_t number_ = 0;
};

// "DOMAIN,PHASE" of a line.
std::pair<std::string, Phase> read_part(Reader& in) {
  const std::string domain(in.field("a domain"));
  if (!is_domain_name(domain))
    in.fail("expected a domain of 1 to 64 letters, digits and . _ -, found \"{}\"", domain.substr(0, 80));
  const std::string_view phase = in.field("prefill or decode");
  if (phase == phase_name(Phase::kPrefill)) return {domain, Phase::kPrefill};
  if (phase == phase_name(Phase::kDecode)) return {domain, Phase::kDecode};
  in.fail("expected prefill or decode, found \"{}\"", phase.substr(0, 40));
}

constexpr std::uint64_t kAnyNumber = ~std::uint64_t{0};

// One "routes" line into `counts`.
void read_routes(Reader& in, const Census& census, int bank, RouteCounts& counts) {
  const std::uint64_t rows = in.number("rows", 0, kAnyNumber / kMaxExperts);
  const auto experts = static_cast<std::size_t>(census.experts);
  std::uint64_t sum = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    // At most one route of a row goes to an expert, so the sum stays within 64 bits.
    const std::uint64_t n = in.number(fmt::format("the routes of expert {}", e), 0, rows);
    counts.routes[static_cast<std::size_t>(bank) * experts + e] = n;
    sum += n;
  }
  in.end_line();
  const std::uint64_t expected = rows * static_cast<std::uint64_t>(census.used);
  if (sum != expected) in.fail("expected {} routes ({} rows, {} each), found {}", expected, rows, census.used, sum);
  if (bank == 0 && rows != counts.rows)
    in.fail("expected {} rows in bank 0, as the rows line says, found {}", counts.rows, rows);
}

std::uint64_t add_checked(std::uint64_t a, std::uint64_t b, std::uint64_t weight) {
  std::uint64_t product = 0, sum = 0;
  if (__builtin_mul_overflow(b, weight, &product) || __builtin_add_overflow(a, product, &sum))
    fail_input("census merge: expected counts below 2^64, found more. Fix: smaller weights");
  return sum;
}

void add_counts(RouteCounts& into, const RouteCounts& from, std::uint64_t weight) {
  if (from.routes.empty()) return;
  into.rows = add_checked(into.rows, from.rows, weight);
  into.routes.resize(from.routes.size());
  for (std::size_t i = 0; i < from.routes.size(); ++i)
    into.routes[i] = add_checked(into.routes[i], from.routes[i], weight);
}

}  // namespace

bool is_domain_name(std::string_view name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 64 && name.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::string_view phase_name(Phase phase) {
  return phase == Phase::kPrefill ? "prefill" : "decode";
}

void Census::add(const std::string& domain, Phase phase, int bank, std::span<const std::int32_t> ids) {
  CHECK(bank >= 0 && bank < banks && used > 0 && ids.size() % static_cast<std::size_t>(used) == 0, "{} of {}, {} / {}",
        bank, banks, ids.size(), used);
  DCHECK(is_domain_name(domain), "{}", domain);
  RouteCounts& counts = domains[domain].of(phase);
  counts.routes.resize(size_of(*this));
  if (bank == 0) counts.rows += ids.size() / static_cast<std::size_t>(used);
  std::uint64_t* routes = counts.routes.data() + static_cast<std::size_t>(bank * experts);
  for (const std::int32_t id : ids) {
    CHECK(id >= 0 && id < experts, "{} of {}", id, experts);
    ++routes[id];
  }
}

std::uint64_t Census::rows() const {
  std::uint64_t sum = 0;
  for (const auto& [name, domain] : domains) sum += domain.prefill.rows + domain.decode.rows;
  return sum;
}

std::string format_census(const Census& census) {
  std::string model = census.model;
  for (char& c : model)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  std::string text = fmt::format("{},{}\nmodel,{}\nfingerprint,{:016x}\nbanks,{}\nexperts,{}\nused,{}\n", kMagic,
                                 kVersion, model, census.fingerprint, census.banks, census.experts, census.used);
  const auto parts = [&](const auto& visit) {
    for (const auto& [name, domain] : census.domains)
      for (const Phase phase : kPhases)
        if (!domain.of(phase).routes.empty()) visit(name, phase, domain.of(phase));
  };
  std::size_t count = 0;
  parts([&](const std::string&, Phase, const RouteCounts&) { ++count; });
  text += fmt::format("parts,{}\n", count);
  parts([&](const std::string& name, Phase phase, const RouteCounts& counts) {
    text += fmt::format("rows,{},{},{}\n", name, phase_name(phase), counts.rows);
  });
  const auto experts = static_cast<std::size_t>(census.experts);
  parts([&](const std::string& name, Phase phase, const RouteCounts& counts) {
    for (std::size_t b = 0; b < static_cast<std::size_t>(census.banks); ++b) {
      const std::span<const std::uint64_t> routes(counts.routes.data() + b * experts, experts);
      const std::uint64_t sum = std::accumulate(routes.begin(), routes.end(), std::uint64_t{0});
      text +=
          fmt::format("routes,{},{},{},{}", name, phase_name(phase), b, sum / static_cast<std::uint64_t>(census.used));
      for (const std::uint64_t n : routes) text += fmt::format(",{}", n);
      text += '\n';
    }
  });
  return text;
}

Census parse_census(std::string_view text, const std::string& where) {
  Reader in(text, where);
  Census census;
  in.next(kMagic);
  if (const std::string_view version = in.field("a version"); version != kVersion)
    in.fail("expected a census of version {}, found version \"{}\"", kVersion, version.substr(0, 40));
  in.end_line();
  in.next("model");
  census.model = in.whole_rest();
  in.next("fingerprint");
  census.fingerprint = in.number("the model's fingerprint", 0, kAnyNumber, 16);
  in.end_line();
  const auto shape = [&](std::string_view keyword, int high) {
    in.next(keyword);
    const std::uint64_t n = in.number(fmt::format("the number of {}", keyword), 1, static_cast<std::uint64_t>(high));
    in.end_line();
    return static_cast<int>(n);
  };
  census.banks = shape("banks", kMaxBanks);
  census.experts = shape("experts", kMaxExperts);
  census.used = shape("used", census.experts);

  std::vector<std::pair<std::string, Phase>> parts;
  in.next("parts");
  const std::uint64_t count = in.number("the number of rows lines", 0, 1 << 20);
  in.end_line();
  for (std::uint64_t i = 0; i < count; ++i) {
    in.next("rows");
    parts.push_back(read_part(in));
    const auto& [name, phase] = parts.back();
    if (std::find(parts.begin(), parts.end() - 1, parts.back()) != parts.end() - 1)
      in.fail("expected one rows line of {} {}, found a second one", name, phase_name(phase));
    census.domains[name].of(phase).rows = in.number("rows", 0, kAnyNumber / kMaxExperts);
    in.end_line();
  }
  for (const auto& [name, phase] : parts) {
    RouteCounts& counts = census.domains[name].of(phase);
    counts.routes.reserve(
        std::min<std::size_t>(size_of(census), text.size()));  // no larger than what the file can fill
    for (int bank = 0; bank < census.banks; ++bank) {
      in.next("routes");
      const auto [found, found_phase] = read_part(in);
      const std::uint64_t found_bank = in.number("a bank", 0, kMaxBanks);
      if (found != name || found_phase != phase || found_bank != static_cast<std::uint64_t>(bank))
        in.fail("expected the routes of {} {} bank {}, found those of {} {} bank {}", name, phase_name(phase), bank,
                found, phase_name(found_phase), found_bank);
      counts.routes.resize(counts.routes.size() + static_cast<std::size_t>(census.experts));
      read_routes(in, census, bank, counts);
    }
  }
  if (!in.at_end()) in.next("(nothing more)");
  return census;
}

Census load_census(const std::filesystem::path& path) {
  return parse_census(read_file(path, "census"), path.string());
}

void save_census(const Census& census, const std::filesystem::path& path) {
  write_file(path, format_census(census));
}

void check_same_shape(const Census& a, const Census& b, std::string_view where) {
  if (a.banks == b.banks && a.experts == b.experts && a.used == b.used) return;
  fail_input(
      "{}: expected a census of the same shape ({} banks of {} experts, {} used), found {} banks of {}, {} used. Fix: "
      "take both on the same model",
      where, a.banks, a.experts, a.used, b.banks, b.experts, b.used);
}

void merge_census(Census& into, const Census& from, std::uint64_t weight) {
  CHECK(into.banks == from.banks && into.experts == from.experts && into.used == from.used);
  if (into.fingerprint != from.fingerprint) into.fingerprint = 0;
  if (weight == 0) return;
  for (const auto& [name, domain] : from.domains)
    for (const Phase phase : kPhases) add_counts(into.domains[name].of(phase), domain.of(phase), weight);
}

RouteShares uniform_shares(int banks, int experts, int used) {
  const auto n = static_cast<std::size_t>(banks) * static_cast<std::size_t>(experts);
  return {banks, experts, used, std::vector<double>(n, 1.0 / experts)};
}

namespace {

// Routes of one part as shares, added to `out` with a weight.
void add_shares(const CensusPart& part, std::span<const Phase> phases, double weight, RouteShares& out) {
  const Census& census = *part.census;
  const auto experts = static_cast<std::size_t>(census.experts);
  std::vector<double> sum(size_of(census));
  for (const auto& [name, domain] : census.domains) {
    if (!part.domain.empty() && name != part.domain) continue;
    for (const Phase phase : phases) {
      const RouteCounts& counts = domain.of(phase);
      for (std::size_t i = 0; i < counts.routes.size(); ++i) sum[i] += static_cast<double>(counts.routes[i]);
    }
  }
  for (std::size_t first = 0; first < sum.size(); first += experts) {
    const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(first);
    const double total = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(experts), 0.0);
    for (std::size_t i = first; i < first + experts; ++i)
      out.share[i] += weight * (total > 0 ? sum[i] / total : 1.0 / census.experts);
  }
}

}  // namespace

RouteShares mix_shares(std::span<const CensusPart> parts, std::span<const Phase> phases) {
  CHECK(!parts.empty());
  const Census& first = *parts.front().census;
  double weights = 0;
  for (const CensusPart& part : parts) {
    CHECK(part.weight >= 0 && part.census->banks == first.banks && part.census->experts == first.experts &&
          part.census->used == first.used);
    weights += part.weight;
  }
  CHECK(weights > 0);
  RouteShares out{first.banks, first.experts, first.used, std::vector<double>(size_of(first))};
  for (const CensusPart& part : parts)
    if (part.weight > 0)
      add_shares(part, phases.empty() ? std::span<const Phase>(kPhases) : phases, part.weight / weights, out);
  return out;
}

}  // namespace tandem
