#include "placement/cost_model.h"

#include <algorithm>
#include <cmath>

#include "placement/check.h"
#include "placement/fetch_ahead.h"

namespace tandem {
namespace {

constexpr double kGiga = 1e9, kMicro = 1e-6;
const std::vector<PlanModel::TypeShare> kNoTypes;

double as_double(std::int64_t n) {
  return static_cast<double>(n);
}

// Seconds to read an expert of these types, each at `rate` or at what its type is limited to, times `cores`.
double expert_seconds(double bytes, const std::vector<PlanModel::TypeShare>& types, double rate,
                      const std::map<std::string, double>& limits, double cores) {
  if (types.empty()) return bytes / rate;
  double seconds = 0;
  for (const PlanModel::TypeShare& part : types) {
    const auto limit = limits.find(part.type);
    const double most = limit == limits.end() ? rate : std::min(rate, limit->second * kGiga * cores);
    seconds += bytes * part.share / most;
  }
  return seconds;
}

}  // namespace

std::vector<double> inclusion_probabilities(const RouteShares& shares) {
  const auto experts = static_cast<std::size_t>(shares.experts);
  std::vector<double> p(shares.share.size(), 0.0);
  const double used = std::min(shares.used, shares.experts);
  for (std::size_t first = 0; first < p.size(); first += experts) {
    std::vector<char> full(experts, 0);
    double open_sum = 0;  // shares of the experts that are not at 1
    for (std::size_t e = 0; e < experts; ++e) open_sum += shares.share[first + e];
    double left = used;
    // Each turn fixes at least one more expert at 1, or ends.
    for (bool changed = true; changed;) {
      changed = false;
      double sum = 0, fixed = 0;
      for (std::size_t e = 0; e < experts; ++e) {
        if (full[e] != 0) continue;
        const double value = open_sum > 0 ? left * shares.share[first + e] / open_sum : 0.0;
        if (value >= 1.0) {
          full[e] = 1;
          p[first + e] = 1.0;
          fixed += 1.0;
          changed = true;
        } else {
          p[first + e] = value;
          sum += shares.share[first + e];
        }
      }
      open_sum = sum;
      left -= fixed;
    }
    // Fewer experts with a share than a row uses: the others are used equally often.
    double total = 0;
    int zero = 0;
    for (std::size_t e = 0; e < experts; ++e) {
      total += p[first + e];
      zero += p[first + e] == 0.0 ? 1 : 0;
    }
    if (zero > 0 && total < used) {
      const double each = std::min(1.0, (used - total) / zero);
      for (std::size_t e = 0; e < experts; ++e) p[first + e] = p[first + e] == 0.0 ? each : p[first + e];
    }
  }
  return p;
}

double chance_met(double p, int rows, double likeness) {
  double none = 1.0;
  for (int i = 0; i < std::min(rows, kLikeRows); ++i) none *= 1.0 - p / (1.0 + likeness * i);
  if (rows > kLikeRows) none *= std::pow(1.0 - p / (1.0 + likeness * kLikeRows), rows - kLikeRows);
  return 1.0 - none;
}

double expected_tokens(int drafts, double acceptance, double decay) {
  double tokens = 1.0, reached = 1.0;
  for (int i = 0; i < drafts; ++i) {
    reached *= acceptance;
    tokens += reached;
    acceptance *= decay;
  }
  return tokens;
}

double expected_stage(double card, double mean, double unit, double handoff) {
  if (mean <= 0) return card;
  constexpr double kLargeMean = 500;  // exp(-mean) would vanish, and so has the spread around it
  if (mean > kLargeMean) return std::max(card, mean * unit + handoff);
  // From m0 misses on the crew is the later one: card P(M < m0) + unit mean P(M >= m0 - 1) + handoff P(M >= m0).
  constexpr double kFar = 1e6;
  const double slack = unit > 0 ? (card - handoff) / unit : (card >= handoff ? kFar : -1.0);
  if (slack >= kFar) return card;
  const double m0 = std::max(1.0, std::floor(slack) + 1.0);
  double term = std::exp(-mean), below = 0, last = 0;  // P(M < m0) and P(M = m0 - 1)
  for (double m = 0; m < m0; m += 1.0) {
    last = term;
    below += term;
    term *= mean / (m + 1.0);
    if (m > mean && term < 1e-18) {
      last = 0;
      break;
    }
  }
  const double above = std::max(0.0, 1.0 - below);
  return card * (1.0 - above) + unit * mean * std::min(1.0, above + last) + handoff * above;
}

double expected_least(double mean, double most) {
  double term = std::exp(-mean), below = 0, sum = 0;  // P(M = m), and over m <= most
  for (double m = 0; m <= most; m += 1.0) {
    sum += m * term;
    below += term;
    term *= mean / (m + 1.0);
  }
  return sum + most * std::max(0.0, 1.0 - below);
}

int crew_workers(const Policy& policy, const Hardware& hardware) {
  if (policy.crew.workers) return *policy.crew.workers;
  const Hardware::Cpu& cpu = hardware.cpu;
  const int cores = cpu.performance_cores + (policy.crew.cores == CrewCores::kAll ? cpu.efficiency_cores : 0);
  if (cores <= 0) return hardware.ram.read_gbps.empty() ? 1 : hardware.ram.read_gbps.rbegin()->first;
  int best = cores;
  for (const auto& [count, rate] : hardware.ram.read_gbps) {
    if (count <= cores && rate > hardware.read_gbps(best)) best = count;
  }
  return best;
}

CostModel::CostModel(const PlanInput& input)
    : input_(input),
      banks_(static_cast<int>(input.model.expert_bytes.size())),
      experts_(input.model.shape.experts),
      workers_(crew_workers(input.policy, input.hardware)),
      p_(inclusion_probabilities(input.shares)) {
  CHECK(input.shares.banks == banks_ && input.shares.experts == experts_, "shares of {} x {}, model of {} x {}",
        input.shares.banks, input.shares.experts, banks_, experts_);
  const Hardware& hardware = input.hardware;
  if (hardware.ram.read_gbps.empty()) missing_ = "RAM bandwidth";
  const double ram = hardware.ram.read_gbps.empty() ? 0.0 : hardware.read_gbps(workers_) * kGiga;
  crew_rate_ = ram * hardware.cpu.expert_efficiency;
  disk_rate_ = hardware.disk.large_read_gbps * kGiga;
  main_rate_ = crew_rate_;
  logits_rate_ = ram;
  const auto units = [&](double rate, const std::map<std::string, double>& limits, double cores) {
    std::vector<double> seconds;
    for (std::size_t b = 0; b < input.model.expert_bytes.size(); ++b) {
      const auto& types = b < input.model.expert_types.size() ? input.model.expert_types[b] : kNoTypes;
      seconds.push_back(expert_seconds(as_double(input.model.expert_bytes[b]), types, rate, limits, cores));
    }
    return seconds;
  };
  if (crew_rate_ > 0) crew_unit_ = units(crew_rate_, hardware.cpu.expert_core_gbps, workers_);
  if (!input.card) return;
  if (!hardware.gpu || hardware.gpu->copy_gbps <= 0) {
    missing_ += missing_.empty() ? "GPU memory bandwidth" : " and GPU memory bandwidth";
    return;
  }
  const Hardware::Gpu& gpu = *hardware.gpu;
  main_rate_ = gpu.copy_gbps * kGiga * gpu.efficiency;
  logits_rate_ = (gpu.pcie_from_card_gbps > 0 ? gpu.pcie_from_card_gbps : gpu.pcie_to_card_gbps) * kGiga;
  pcie_rate_ = gpu.pcie_to_card_gbps * kGiga;
  handoff_ = (gpu.handoff_us + hardware.cpu.start_us) * kMicro;
  kernel_ = gpu.kernel_us * kMicro;
  kernel_row_ = gpu.row_us * kMicro;
  fetch_ = gpu.fetch_us * kMicro;
  card_unit_ = units(main_rate_, gpu.expert_gbps, 1.0);
}

double CostModel::met(int bank, int expert, int rows) const {
  return chance_met(p_[index(bank, expert)], rows, input_.row_likeness);
}

double CostModel::work(int bank, int expert, int rows) const {
  const double q = met(bank, expert, rows);
  return q + input_.hardware.cpu.row_cost * (rows * p_[index(bank, expert)] - q);
}

CostModel::Use CostModel::use(int bank, int drafts) const {
  return bank < input_.model.shape.layers ? Use{1, 1 + drafts} : Use{drafts, 1};
}

BankLoad CostModel::load(const ExpertPlacement& placement, int bank, int rows) const {
  BankLoad load;
  for (int e = 0; e < experts_; ++e) {
    const double q = met(bank, e, rows);
    switch (placement.at(bank, e)) {
      case Place::kCard:
        load.card += q;
        // Where the CPU plays the card, its work counts as the crew's does.
        if (!input_.card) load.work += work(bank, e, rows);
        break;
      case Place::kRam:
        load.misses += q;
        load.work += work(bank, e, rows);
        break;
      case Place::kDisk:
        load.disk_misses += q;
        load.disk_work += work(bank, e, rows);
        break;
    }
  }
  return load;
}

double CostModel::stage_seconds(int bank, const BankLoad& load) const {
  const double bytes = as_double(input_.model.expert_bytes[static_cast<std::size_t>(bank)]);
  const double disk =
      load.disk_misses > 0 ? bytes * load.disk_misses / disk_rate_ + crew_seconds(bank) * load.disk_work : 0.0;
  if (!input_.card) return crew_seconds(bank) * load.work + disk;
  const bool trunk = bank < input_.model.shape.layers;
  const double shared = trunk ? as_double(input_.model.shared_packed) / (main_rate_ * input_.model.shape.layers) : 0.0;
  const double unit = load.misses > 0 ? crew_seconds(bank) * (load.work / load.misses) : 0.0;
  const double card = shared + card_seconds(bank) * load.card;
  return expected_stage(card, load.misses, unit, handoff_) + disk;
}

CostModel::Fetched CostModel::fetched(int bank, const BankLoad& load, double window) const {
  Fetched all{load, 0, 0};
  // Nobody names experts of the first layer, or of the draft block, whose passes are of one layer each.
  if (bank == 0 || bank >= input_.model.shape.layers || load.misses <= 0 || pcie_rate_ <= 0) return all;
  const double copy = as_double(input_.model.expert_bytes[static_cast<std::size_t>(bank)]) / pcie_rate_;
  all.copies = expected_least(load.misses, std::min<double>(kNamedExperts, kFetchShare * window / copy));
  all.right = kNamedRight * all.copies;
  all.load.card += all.right;
  all.load.work *= 1.0 - all.right / load.misses;
  all.load.misses -= all.right;
  return all;
}

double CostModel::attention_bytes(int rows) const {
  const ModelShape& s = input_.model.shape;
  const StateLayout& state = input_.state;
  const std::int64_t chosen = std::min<std::int64_t>(state.context, s.indexer_budget + s.indexer_ratio);
  const double kv = as_double(rows * chosen * 2 * s.kv_heads * s.head_dim) * state.kv_bits / 8;
  const double pooled = as_double(state.context / std::max(s.indexer_ratio, 1) * s.indexer_dim) * state.pooled_bits / 8;
  return kv + pooled;
}

double CostModel::trunk_cache_bytes(int rows) const {
  const ModelShape& s = input_.model.shape;
  const auto attention = std::count(s.is_gdn.begin(), s.is_gdn.end(), false);
  return as_double(attention) * attention_bytes(rows) +
         2 * as_double(state_bytes(s, input_.state).gdn_state);  // read and written
}

// A matrix is read once for all rows. The CPU needs more time for each further row, the card does not.
double CostModel::matrix_seconds(double bytes, int rows) const {
  const double factor = input_.card ? 1.0 : 1.0 + input_.hardware.cpu.row_cost * (rows - 1);
  return bytes * factor / main_rate_;
}

int CostModel::stream_rows(const ExpertPlacement& placement) const {
  if (pcie_rate_ <= 0 || !known()) return 0;
  const int banks = std::min(banks_, input_.model.shape.layers);
  const auto sum = [&](auto&& seconds) {  // over the experts of the trunk that are in RAM
    double total = 0;
    for (int bank = 0; bank < banks; ++bank)
      for (int e = 0; e < experts_; ++e)
        if (placement.at(bank, e) == Place::kRam) total += seconds(bank, e);
    return total;
  };
  const double sent = sum(
      [&](int bank, int) { return as_double(input_.model.expert_bytes[static_cast<std::size_t>(bank)]) / pcie_rate_; });
  const auto faster = [&](int rows) {
    return sent <= sum([&](int bank, int e) { return crew_seconds(bank) * work(bank, e, rows); });
  };
  if (sent == 0 || !faster(kMostPrefillRows)) return 0;
  int low = 0, high = kMostPrefillRows;  // not faster, faster: more rows are more work for the crew
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (faster(middle) ? high : low) = middle;
  }
  return high;
}

std::vector<BankLoad> CostModel::loads(const ExpertPlacement& placement, int drafts) const {
  std::vector<BankLoad> loads;
  for (int bank = 0; bank < banks_; ++bank) {
    const Use use = this->use(bank, drafts);
    loads.push_back(use.times == 0 ? BankLoad{} : load(placement, bank, use.rows));
  }
  return loads;
}

RoundTime CostModel::round(const std::vector<BankLoad>& loads, int drafts) const {
  const FetchAhead how = input_.policy.adapt.fetch_ahead;
  if (!input_.card || how == FetchAhead::kOff) return round(loads, drafts, false);
  const RoundTime with = round(loads, drafts, true);
  if (how == FetchAhead::kOn) return with;
  const RoundTime without = round(loads, drafts, false);
  return with.total < without.total ? with : without;
}

RoundTime CostModel::round(const std::vector<BankLoad>& loads, int drafts, bool fetches) const {
  CHECK(known(), "no prediction without {}", missing_);
  CHECK(loads.size() == static_cast<std::size_t>(banks_), "{} loads of {} banks", loads.size(), banks_);
  const PlanModel& model = input_.model;
  const ModelShape& s = model.shape;
  RoundTime time;
  time.rows = 1 + drafts;
  const auto attention = static_cast<double>(std::count(s.is_gdn.begin(), s.is_gdn.end(), false));
  const double gdn_kernels = kGdnLayerKernels - gdn_step_saves(time.rows);
  const double kernels = (s.layers - attention) * gdn_kernels + attention * kAttentionLayerKernels;
  const std::int64_t overlapped = input_.card ? model.shared_packed : 0;  // runs in the expert stage
  time.dense = matrix_seconds(as_double(model.dense_packed - overlapped), time.rows) +
               trunk_cache_bytes(time.rows) / main_rate_ + kernels * (kernel_ + kernel_row_ * drafts);
  time.head = matrix_seconds(as_double(model.head_packed), time.rows);
  const double logits = logits_rate_ > 0 ? as_double(s.vocab) * 4 / logits_rate_ : 0.0;
  time.sampling = time.rows * logits;
  if (drafts > 0) {
    const double share = model.draft_tokens > 0 ? as_double(model.draft_tokens) / as_double(s.vocab) : 1.0;
    time.draft =
        drafts * (matrix_seconds(as_double(model.draft_packed), 1) + attention_bytes(1) / main_rate_ +
                  kDraftKernels * kernel_ + matrix_seconds(as_double(model.draft_head_packed), 1) + logits * share);
  }
  const double mixers = time.dense / s.layers;  // of a layer
  for (int bank = 0; bank < banks_; ++bank) {
    const Use use = this->use(bank, drafts);
    if (use.times == 0) continue;
    Fetched fetched{loads[static_cast<std::size_t>(bank)], 0, 0};
    if (fetches) fetched = this->fetched(bank, fetched.load, mixers);
    const BankLoad& load = fetched.load;
    time.dense += fetch_ * fetched.copies;
    time.fetched += fetched.right;
    const double bytes = as_double(model.expert_bytes[static_cast<std::size_t>(bank)]);
    const double seconds = use.times * stage_seconds(bank, load);
    if (bank >= s.layers) {
      time.draft += seconds;
      continue;
    }
    time.experts += seconds;
    time.crew += crew_seconds(bank) * load.work;
    if (load.disk_misses > 0) time.disk += bytes * load.disk_misses / disk_rate_ + crew_seconds(bank) * load.disk_work;
    if (!input_.card) continue;
    time.card += stage_seconds(bank, BankLoad{.card = load.card});
    time.handoff += handoff_ * (1.0 - std::exp(-load.misses));
  }
  time.wait = input_.card ? std::max(0.0, time.experts - time.card - time.disk) : 0.0;
  time.card = input_.card ? time.card + time.dense : 0.0;
  time.total = time.dense + time.experts + time.head + time.sampling + time.draft;
  time.tokens = expected_tokens(drafts, input_.acceptance, input_.acceptance_decay);
  return time;
}

}  // namespace tandem
