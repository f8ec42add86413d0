// The certificate of the lossy switches: what runtime/lossy_eval.h measured, in words, as JSON and as CSV.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/lossy.h"
#include "runtime/lossy_eval.h"
#include "runtime/reference_eval.h"

namespace tandem {
namespace {

struct Spread {
  double mean = 0, p99 = 0, most = 0;
};

Spread spread(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double v : values) sum += v;
  return {sum / static_cast<double>(values.size()), quantile(values, 0.99), values.back()};
}

// What the positions come to, of one kind of change.
struct ChangeSummary {
  std::size_t positions = 0;
  Spread total_variation, kl;
  double top1_changed = 0, kept = 0;  // shares
};

template <typename Get>
ChangeSummary summarize_changes(const LossyResult& result, Get&& get) {
  ChangeSummary summary;
  std::vector<double> tv, kl;
  for (const LossyPosition& p : result.positions) {
    const DistributionChange* change = get(p);
    if (change == nullptr) continue;
    tv.push_back(change->total_variation);
    kl.push_back(change->kl);
    summary.top1_changed += change->top1_changed ? 1 : 0;
    summary.kept += change->kept;
  }
  summary.positions = tv.size();
  if (tv.empty()) return summary;
  summary.total_variation = spread(std::move(tv));
  summary.kl = spread(std::move(kl));
  summary.top1_changed /= static_cast<double>(summary.positions);
  summary.kept /= static_cast<double>(summary.positions);
  return summary;
}

ChangeSummary of_logits(const LossyResult& result) {
  return summarize_changes(result, [](const LossyPosition& p) { return &p.logits; });
}
ChangeSummary of_head(const LossyResult& result) {
  return summarize_changes(result, [](const LossyPosition& p) { return p.head ? &*p.head : nullptr; });
}
ChangeSummary of_lookup(const LossyResult& result) {
  return summarize_changes(result, [](const LossyPosition& p) { return p.lookup ? &*p.lookup : nullptr; });
}

double mean_nll(const LossyResult& result, double LossyPosition::*nll) {
  double sum = 0;
  for (const LossyPosition& p : result.positions) sum += p.*nll;
  return sum / static_cast<double>(result.positions.size());
}

std::string change_text(const ChangeSummary& c, std::string_view kl) {
  return fmt::format(
      "    total variation mean {:.3e}, p99 {:.3e}, largest {:.3e}\n    {} mean {:.3e}, p99 {:.3e}, largest {:.3e}\n"
      "    most likely token changed at {:.2f} % of positions\n",
      c.total_variation.mean, c.total_variation.p99, c.total_variation.most, kl, c.kl.mean, c.kl.p99, c.kl.most,
      100 * c.top1_changed);
}

std::string sampling_text(const SamplerSettings& s) {
  if (s.temperature == 0.0F) return "greedy";
  return fmt::format("temperature {}, top-k {}, top-p {}, min-p {}", s.temperature, s.top_k, s.top_p, s.min_p);
}

nlohmann::ordered_json change_json(const ChangeSummary& c) {
  const auto values = [](const Spread& s) {
    return nlohmann::ordered_json{{"mean", s.mean}, {"p99", s.p99}, {"max", s.most}};
  };
  return {{"positions", c.positions},
          {"total_variation", values(c.total_variation)},
          {"kl", values(c.kl)},
          {"top1_changed", c.top1_changed},
          {"kept_though_rejected", c.kept}};
}

}  // namespace

std::string lossy_certificate(const LossyResult& result, const LossyEvalOptions& options) {
  std::string text =
      fmt::format("certificate of {}: {} tokens, {} positions, windows of {}: {}\n", lossy_switches(options.lossy),
                  result.tokens, result.positions.size(), options.text.window, result.windows);
  if (options.lossy.tail_route_skip > 0) {
    const double nll = mean_nll(result, &LossyPosition::nll), exact = mean_nll(result, &LossyPosition::exact_nll);
    text += fmt::format(
        "  tail-route skip, softmax of the logits against exact: {:.2f} % of router weight and {:.2f} % "
        "of routes skipped\n",
        100 * result.skipped.weight_share(), 100 * result.skipped.route_share());
    text += change_text(of_logits(result), "KL(exact || lossy)");
    text += fmt::format("    perplexity {:.4f}, exact {:.4f}, ratio {:.6f}\n", std::exp(nll), std::exp(exact),
                        std::exp(nll - exact));
  }
  if (!options.lossy.biased_acceptance) return text;
  const auto biased = [&](std::string_view source, const ChangeSummary& c) {
    if (c.positions == 0) return fmt::format("  biased acceptance, {}: none\n", source);
    return fmt::format("  biased acceptance, {}, {} positions, {}: kept though rejected {:.2f} %\n", source,
                       c.positions, sampling_text(options.sampling), 100 * c.kept) +
           change_text(c, "KL(lossy || exact check)");
  };
  return text + biased("first drafts of the head", of_head(result)) +
         biased("first drafts of the lookup", of_lookup(result));
}

std::string lossy_certificate_json(const LossyResult& result, const LossyEvalOptions& options) {
  nlohmann::ordered_json json{{"tokens", result.tokens},
                              {"windows", result.windows},
                              {"positions", result.positions.size()},
                              {"nll", mean_nll(result, &LossyPosition::nll)},
                              {"exact_nll", mean_nll(result, &LossyPosition::exact_nll)}};
  if (options.lossy.tail_route_skip > 0) {
    json["tail_route_skip"] = change_json(of_logits(result));
    json["tail_route_skip"].erase("kept_though_rejected");
    json["tail_route_skip"]["budget"] = options.lossy.tail_route_skip;
    json["tail_route_skip"]["weight_skipped"] = result.skipped.weight_share();
    json["tail_route_skip"]["routes_skipped"] = result.skipped.route_share();
  }
  if (options.lossy.biased_acceptance)
    json["biased_acceptance"] = {{"sampling", sampling_text(options.sampling)},
                                 {"head", change_json(of_head(result))},
                                 {"lookup", change_json(of_lookup(result))}};
  return json.dump(1) + "\n";
}

std::string lossy_csv(const LossyResult& result) {
  std::string csv =
      "window,position,token,nll,exact_nll,total_variation,kl,top1_changed,head_total_variation,head_kl,"
      "head_top1_changed,head_kept,lookup_total_variation,lookup_kl,lookup_top1_changed,lookup_kept\n";
  const auto biased = [](const std::optional<DistributionChange>& c) {
    return c ? fmt::format(",{},{},{},{}", c->total_variation, c->kl, c->top1_changed ? 1 : 0, c->kept) : ",,,,";
  };
  for (const LossyPosition& p : result.positions)
    csv += fmt::format("{},{},{},{},{},{},{},{}{}{}\n", p.window, p.position, p.token, p.nll, p.exact_nll,
                       p.logits.total_variation, p.logits.kl, p.logits.top1_changed ? 1 : 0, biased(p.head),
                       biased(p.lookup));
  return csv;
}

}  // namespace tandem
