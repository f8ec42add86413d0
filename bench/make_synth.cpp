// Writes a synthetic model: the real width, any depth, any types.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bench/bench.h"
#include "bench/synth.h"
#include "placement/check.h"
#include "runtime/output.h"
#include "runtime/progress.h"

namespace tandem::bench {
namespace {

DType parse_type(const std::string& flag, const std::string& name) {
  std::string known;
  for (std::uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = find_dtype(id);
    if (info == nullptr || info->kind == DTypeKind::kStorage) continue;
    if (info->name == name) return info->type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info->name);
  }
  fail_input("{}: expected one of {}, found {}", flag, known, name);
}

struct Flags {
  SynthOptions options;
  std::string out, recipe, census;
  std::vector<double> skew;
  std::size_t shards = 1, threads = 0;
  bool empty = false;
};

int run(int argc, char** argv) {
  Flags flags;
  CLI::App app("Writes a random model of the architecture's real width", "make_synth");
  SynthOptions& options = flags.options;
  app.add_option("OUT", flags.out, "GGUF file to write; with --shards OUT-0000i-of-0000n.gguf")->required();
  app.add_option("--layers", options.layers, "trunk layers; every fourth is attention")->capture_default_str();
  app.add_option("--experts", options.experts, "experts of a layer")->capture_default_str();
  app.add_option("--vocab", options.vocab, "tokens")->capture_default_str();
  app.add_option("--ngram-rows", options.ngram_rows, "rows of the n-gram table")->capture_default_str();
  app.add_flag("--mtp", options.mtp, "add a draft block");
  app.add_option("--recipe", flags.recipe,
                 fmt::format("types of a published file: {}", fmt::join(recipe_names(), ", ")));
  struct TypeFlag {
    const char* flag;
    const char* what;
    DType* type;
    std::string name;
  };
  std::vector<TypeFlag> types{{"--gate-up", "experts' gate and up matrices", &options.gate_up, {}},
                              {"--down", "experts' down matrices (rows of 640: blocks of 32)", &options.down, {}},
                              {"--dense", "mixers and shared experts", &options.dense, {}},
                              {"--embedding", "token embedding", &options.embedding, {}},
                              {"--head", "output matrix", &options.head, {}},
                              {"--ngram", "n-gram table", &options.ngram, {}}};
  for (TypeFlag& type : types) app.add_option(type.flag, type.name, type.what)->type_name("TYPE");
  app.add_option("--skew", flags.skew,
                 "planted routes: a share of each layer's experts and the share of routes they get, as 0.41,0.92")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--census", flags.census, "write what a census of the planted routes would count");
  app.add_option("--seed", options.seed, "another seed gives other weights")->capture_default_str();
  app.add_option("--shards", flags.shards, "files of the set")->check(CLI::Range(1, 99));
  app.add_option("--threads", flags.threads, "threads that write; default one per processor");
  app.add_flag("--empty", flags.empty, "leave holes where the weights would be: enough for `tandem plan`");
  app.footer(
      "Examples:\n"
      "  make_synth six.gguf --layers 6 --experts 512 --gate-up Q4_K --down IQ4_NL\n"
      "  make_synth full.gguf --layers 48 --vocab 248320 --ngram-rows 1600000 --recipe ud-q3_k_xl --shards 4 --skew "
      "0.41,0.92 --census full.census.csv");
  CLI11_PARSE(app, argc, argv);

  if (!flags.recipe.empty()) apply_recipe(flags.recipe, options);
  for (const TypeFlag& type : types)
    if (!type.name.empty()) *type.type = parse_type(type.flag, type.name);
  if (flags.skew.size() == 2) {
    options.hot_experts = flags.skew[0];
    options.hot_routes = flags.skew[1];
  }
  const ModelShape shape = synth_shape(options);
  if (!flags.census.empty()) {
    if (flags.skew.empty()) fail_input("--census: expected --skew with it, found none. Fix: --skew 0.41,0.92");
    save_census(planted_census(options, shape), flags.census);
  }
  const std::size_t threads = flags.threads == 0 ? machine_info("-").cpus.size() : flags.threads;
  Progress progress("Writing", "MB");
  const SynthReport report =
      write_synth(options, shape, flags.out, flags.shards, threads, flags.empty,
                  [&](std::uint64_t done, std::uint64_t total) { progress.update(done / 1000000, total / 1000000); });
  progress.clear();
  for (const std::filesystem::path& file : report.files) write_stdout(file.string() + "\n");
  write_stdout(fmt::format("{:.2f} GB in {:.1f} s, {:.2f} GB/s with {} threads\n",
                           static_cast<double>(report.bytes) / 1e9, report.seconds,
                           static_cast<double>(report.bytes) / 1e9 / report.seconds, threads));
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("make_synth", [&] { return tandem::bench::run(argc, argv); });
}
