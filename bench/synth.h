// Synthetic qwen4exp models of the real width and any depth: what make_synth writes and the benchmarks run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "placement/census.h"
#include "placement/model_shape.h"
#include "runtime/model_tensors.h"
#include "runtime/quant.h"

namespace tandem::bench {

struct SynthOptions {
  int layers = 6;
  int experts = 512;
  std::int64_t vocab = 16384;       // at least 300
  std::int64_t ngram_rows = 65536;  // at least 4096; the published table has 320001536
  bool mtp = false;                 // a draft block as well
  // Planted routes: this share of each layer's experts gets this share of the routes (0: all experts alike). Router
  // rows are shorter for the others, by what inputs of normal distribution ask for.
  double hot_experts = 0, hot_routes = 0;
  std::uint64_t seed = 1;
  // Types of published files are mixtures: layer_types overrides by layer, `dense` holds for what has no field here.
  DType gate_up = DType::Q4_K, down = DType::IQ4_NL, dense = DType::Q8_0;
  DType embedding = DType::Q8_0, head = DType::Q6_K, ngram = DType::IQ4_NL;
  struct LayerType {
    int layer;
    bool down;  // else gate and up
    DType type;
  };
  std::vector<LayerType> layer_types;
};

// Whether expert number `expert` of a layer (the draft block is layer `layers`) is one of the planted ones.
bool is_hot_expert(const SynthOptions& options, int layer, int expert);
// Length of the other experts' router rows, as a share of the hot ones'. REQUIRES a skew.
double cold_router_scale(const SynthOptions& options, int used);
// What a census of such a model would count, as a domain "planted".
Census planted_census(const SynthOptions& options, const ModelShape& shape);

// Sets the types of a published file ("ud-q4_k_xl"); throws InputError with the known names for another one.
void apply_recipe(std::string_view name, SynthOptions& options);
std::vector<std::string_view> recipe_names();

// The published shape with the counts of the options: 2560 wide, every fourth layer attention, expert rows of 640.
// Throws InputError for counts that make no model.
ModelShape synth_shape(const SynthOptions& options);

// The type of one tensor: norms, vectors, convolutions, router, shared gate, alpha, beta and inject F32, indexer
// BF16, PLE and hyper-connection matrices Q8_0 as published; the rest by the options. A `dense` type whose blocks do
// not divide the row gives way to Q8_0. Throws InputError where gate_up, down, embedding, head or ngram do not fit.
DType synth_type(const SynthOptions& options, const TensorSpec& spec);

struct SynthReport {
  std::vector<std::filesystem::path> files;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

// Writes a model of `shape`, with the types of the options, to PATH (or PREFIX-0000i-of-0000n.gguf for shards > 1, next
// to it). Values are random, sane (activations stay of order one) and the same for one seed, whatever the number of
// threads. `empty` leaves holes where the values would be: enough for a plan, and no room on the disk. Nothing but a
// few megabytes a thread is held in memory. Throws InputError when the files cannot be written; they are removed then.
SynthReport write_synth(const SynthOptions& options, const ModelShape& shape, const std::filesystem::path& path,
                        std::size_t shards, std::size_t threads, bool empty,
                        const std::function<void(std::uint64_t done, std::uint64_t total)>& progress);

}  // namespace tandem::bench
