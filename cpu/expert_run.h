// The experts of one layer for the rows of a pass (docs/numerics.md, R5), cut into units that any number of threads
// take in ascending order.
//
// Packed experts run tile by tile in two phases: first gate and up (16 hidden values for all rows of the expert;
// whoever finishes an expert's last one quantises its hidden rows), then down. So all threads share whatever experts
// there are, and a tile is read once for all rows that use it. Units that need hidden rows come after all units that
// make them, and wait for those of their own expert only.
//
// Of few rows, the tiles of gate and then those of up are units of their own, in the order in which they lie in memory:
// a thread that takes several reads one stream, and one expert makes 80 units instead of 40, which 16 threads share
// evenly. Whoever comes second to a pair of tiles multiplies. Of many rows a unit makes both, and the values of up stay
// in the cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/kernels/tile_kernels.h"
#include "runtime/expert_blob.h"
#include "runtime/ops.h"

namespace tandem {

// One packed matrix.
struct PackedTiles {
  TileFunction kernel = nullptr;
  std::size_t rows = 0, cols = 0, tile_bytes = 0;
  const std::uint8_t* data = nullptr;
  float scale = 1.0F;
  std::size_t count() const { return (rows + kTileRows - 1) / kTileRows; }
  void run(std::size_t tile, const TileJob* jobs, std::size_t job_count) const {
    kernel(data + tile * tile_bytes, cols, jobs, job_count, std::min(kTileRows, rows - tile * kTileRows), scale);
  }
};
struct PackedExpert {
  PackedTiles gate, up, down;
  explicit operator bool() const { return gate.data != nullptr; }
};
PackedExpert packed_expert(TileIsa isa, const ExpertBlobLayout& layout, const std::uint8_t* blob,
                           const ExpertWeights& weights);
PackedExpert packed_expert(TileIsa isa, const PackedMatrix& gate, const PackedMatrix& up, const PackedMatrix& down);

class ExpertRun {
 public:
  // Room for `rows` (row, expert) pairs of ff hidden values, so that runs up to that size allocate nothing.
  void reserve(std::size_t rows, std::size_t experts, std::size_t ff);

  // Starts a new list. `a` and everything added must stay valid until the last unit has run. REQUIRES that all experts
  // of a list have the same shape.
  void begin(const Activation& a);
  // The next expert: packed, or by the rows of the file where `packed` is empty; then its (row, result) pairs.
  void add_expert(const PackedExpert& packed, const ExpertWeights& weights);
  void add_row(std::size_t row, float* out);
  // Ends the list and cuts it into units for `workers` threads.
  void finish(int workers);

  std::size_t units() const { return units_; }
  // Those of them that wait for no others; they come first.
  std::size_t first_units() const { return raw_.size() + entries_.size() * gate_groups_; }
  // Weights touched by the whole run, in the unit of CpuOps::parallel.
  std::size_t work() const { return work_; }
  // Any thread; each unit once, claimed in ascending order.
  void run(std::size_t unit);

 private:
  struct Entry {
    PackedExpert packed;
    ExpertWeights weights;
    std::size_t first = 0, count = 0;  // of its pairs
  };
  struct alignas(64) Progress {
    std::atomic<std::uint32_t> gate_left{0};          // units, or pairs of tiles where they are apart
    alignas(64) std::atomic<std::uint32_t> ready{0};  // threads wait for it while others count down
  };
  void first_phase(std::size_t at, std::size_t group);
  void gate_up(const Entry& entry, std::size_t tile);
  // One tile of gate, or of up where `tile` is beyond those; true when it completed a pair.
  bool gate_or_up(std::size_t at, std::size_t tile);
  void quantize(const Entry& entry);
  void down(const Entry& entry, std::size_t tile);
  void by_rows(const Entry& entry);  // a whole expert from the file's rows

  Activation a_;
  std::vector<Entry> entries_, raw_;  // packed ones; those read from the file
  Entry* current_ = nullptr;          // the last one added
  std::vector<std::uint32_t> rows_;
  std::vector<float*> out_;
  std::unique_ptr<Progress[]> progress_;
  std::size_t progress_size_ = 0;
  std::size_t ff_ = 0, units_ = 0, work_ = 0;
  std::size_t gate_group_ = 1, gate_groups_ = 0, down_group_ = 1, down_groups_ = 0;
  bool apart_ = false;  // gate and up are units of their own
  // A bit per pair of tiles, set while one of both is done; words_ for each expert.
  std::unique_ptr<std::atomic<std::uint64_t>[]> pairs_;
  std::size_t pairs_size_ = 0, words_ = 0;
  // Hidden rows, in the order of the pairs; values of up where they are apart.
  std::vector<float> h_, up_, d_;
  std::vector<std::int8_t> q_;
  std::vector<std::int32_t> s_;
  std::vector<char> finite_;
};

}  // namespace tandem
