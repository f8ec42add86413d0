// The experts of one layer for the rows of a pass (docs/numerics.md, R5), cut into units that any number of threads
// take in ascending order.
//
// Packed experts run tile by tile in two phases: first gate and up (16 hidden values for all rows of the expert,
// multiplied on the spot; whoever finishes an expert's last one quantises its hidden rows), then down. So all threads
// share whatever experts there are, and a tile is read once for all rows that use it. Units that need hidden rows come
// after all units that make them, and wait for those of their own expert only.
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
  struct Progress {
    std::atomic<std::uint32_t> gate_left{0};
    std::atomic<std::uint32_t> ready{0};
  };
  void gate_up(const Entry& entry, std::size_t tile);
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
  // Hidden rows, in the order of the pairs.
  std::vector<float> h_, d_;
  std::vector<std::int8_t> q_;
  std::vector<std::int32_t> s_;
  std::vector<char> finite_;
};

}  // namespace tandem
