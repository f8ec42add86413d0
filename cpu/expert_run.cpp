#include "cpu/expert_run.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <cmath>

#include "cpu/kernels/dot_block.h"
#include "cpu/kernels/dot_float.h"
#include "cpu/kernels/elementwise.h"

namespace tandem {
namespace {

// Rows of one kernel call: their jobs and up values stay on the stack.
constexpr std::size_t kRowBlock = 64;
// Weights of a unit, at most: 2 us or more of a worker, against 0.1 us to claim one, or several at once.
constexpr std::size_t kUnitWeights = 52 * 1024;
// Units of a phase for each worker at least, where there are as many tiles: so that uneven starts and ends even out.
constexpr std::size_t kUnitsEach = 2;
// Lists of at most so many (row, expert) pairs have gate and up apart.
constexpr std::size_t kApartRows = 256;
// A thread that waits for hidden rows longer than this many looks lets others run.
constexpr int kPatience = 2000;

bool is_block(const WeightView& w) {
  return dtype_info(w.type).kind == DTypeKind::kBlock;
}

PackedTiles tiles_of(TileIsa isa, const ExpertBlobLayout::Part& part, const std::uint8_t* blob, float scale) {
  return {tile_function(isa, part.type), part.rows, part.cols, part.tile_bytes, blob + part.offset, scale};
}
PackedTiles tiles_of(TileIsa isa, const PackedMatrix& w) {
  return {tile_function(isa, w.type), w.rows, w.cols, w.tile_bytes, w.data(), w.scale};
}

}  // namespace

PackedExpert packed_expert(TileIsa isa, const ExpertBlobLayout& layout, const std::uint8_t* blob,
                           const ExpertWeights& weights) {
  return {tiles_of(isa, layout.gate, blob, weights.gate.scale), tiles_of(isa, layout.up, blob, weights.up.scale),
          tiles_of(isa, layout.down, blob, weights.down.scale)};
}
PackedExpert packed_expert(TileIsa isa, const PackedMatrix& gate, const PackedMatrix& up, const PackedMatrix& down) {
  return {tiles_of(isa, gate), tiles_of(isa, up), tiles_of(isa, down)};
}

void ExpertRun::reserve(std::size_t rows, std::size_t experts, std::size_t ff) {
  const auto grow = [](auto& vector, std::size_t size) {
    if (vector.size() < size) vector.resize(size);
  };
  grow(h_, rows * ff);
  grow(up_, std::min(rows, kApartRows) * ff);
  grow(q_, rows * ff);
  grow(d_, rows * ff / 32);
  grow(s_, rows * ff / 16);
  grow(finite_, rows);
  rows_.reserve(rows);
  out_.reserve(rows);
  entries_.reserve(experts);
  raw_.reserve(experts);
  if (progress_size_ < experts) {
    progress_ = std::make_unique<Progress[]>(experts);
    progress_size_ = experts;
  }
  words_ = ((ff + kTileRows - 1) / kTileRows + 63) / 64;
  if (pairs_size_ < experts * words_) {
    pairs_ = std::make_unique<std::atomic<std::uint64_t>[]>(experts * words_);
    pairs_size_ = experts * words_;
  }
}

void ExpertRun::begin(const Activation& a) {
  a_ = a;
  entries_.clear();
  raw_.clear();
  rows_.clear();
  out_.clear();
}

void ExpertRun::add_expert(const PackedExpert& packed, const ExpertWeights& weights) {
  current_ = &(packed ? entries_ : raw_).emplace_back(Entry{packed, weights, rows_.size(), 0});
  ff_ = packed ? packed.gate.rows : weights.gate.rows;
}

void ExpertRun::add_row(std::size_t row, float* out) {
  ++current_->count;
  rows_.push_back(static_cast<std::uint32_t>(row));
  out_.push_back(out);
}

void ExpertRun::finish(int workers) {
  reserve(rows_.size(), entries_.size(), ff_);
  units_ = raw_.size();
  work_ = 0;
  gate_groups_ = down_groups_ = 0;
  if (!raw_.empty()) work_ = rows_.size() * 3 * ff_ * raw_[0].weights.gate.cols;
  if (entries_.empty()) return;
  const PackedExpert& shape = entries_[0].packed;
  // A row more costs about half a row. Few experts are cut finer, so that every worker gets something.
  const std::size_t depth = std::max<std::size_t>(1, rows_.size() / entries_.size() / 2);
  const auto group = [&](std::size_t tiles, std::size_t tile_weights) {
    const std::size_t worth = kUnitWeights / (tile_weights * depth);
    const std::size_t fair = tiles * entries_.size() / (kUnitsEach * static_cast<std::size_t>(workers));
    return std::clamp<std::size_t>(std::min(worth, fair), 1, tiles);
  };
  apart_ = rows_.size() <= kApartRows;
  const std::size_t pairs = shape.gate.count(), down_tiles = shape.down.count();
  const std::size_t gate_tiles = apart_ ? 2 * pairs : pairs;
  gate_group_ = group(gate_tiles, (apart_ ? 1 : 2) * kTileRows * shape.gate.cols);
  gate_groups_ = (gate_tiles + gate_group_ - 1) / gate_group_;
  down_group_ = group(down_tiles, kTileRows * shape.down.cols);
  down_groups_ = (down_tiles + down_group_ - 1) / down_group_;
  units_ += entries_.size() * (gate_groups_ + down_groups_);
  work_ += entries_.size() * depth * 3 * shape.gate.rows * shape.gate.cols / 8;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    progress_[i].gate_left.store(static_cast<std::uint32_t>(apart_ ? pairs : gate_groups_), std::memory_order_relaxed);
    progress_[i].ready.store(0, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < entries_.size() * words_; ++i) pairs_[i].store(0, std::memory_order_relaxed);
}

void ExpertRun::run(std::size_t unit) {
  if (unit < raw_.size()) return by_rows(raw_[unit]);
  unit -= raw_.size();
  const std::size_t gate_units = entries_.size() * gate_groups_;
  if (unit < gate_units) return first_phase(unit / gate_groups_, unit % gate_groups_);
  unit -= gate_units;
  const std::size_t at = unit / down_groups_, first = unit % down_groups_ * down_group_;
  const PackedTiles& matrix = entries_[at].packed.down;
  const std::size_t last = std::min(first + down_group_, matrix.count());
  const auto ready = [&] { return progress_[at].ready.load(std::memory_order_acquire) != 0; };
  // What is waited for does not keep the unit's weights from being read.
  if (!ready())
    for (std::size_t byte = first * matrix.tile_bytes; byte < last * matrix.tile_bytes; byte += 64)
      __builtin_prefetch(matrix.data + byte, 0, 3);
  for (int look = 0; !ready(); ++look) {
    if (look < kPatience)
      _mm_pause();
    else
      sched_yield();
  }
  for (std::size_t t = first; t < last; ++t) down(entries_[at], t);
}

void ExpertRun::first_phase(std::size_t at, std::size_t group) {
  const Entry& entry = entries_[at];
  const std::size_t tiles = (apart_ ? 2 : 1) * entry.packed.gate.count(), first = group * gate_group_;
  std::uint32_t done = apart_ ? 0 : 1;
  for (std::size_t t = first; t < std::min(first + gate_group_, tiles); ++t) {
    if (apart_)
      done += gate_or_up(at, t) ? 1U : 0U;
    else
      gate_up(entry, t);
  }
  if (done == 0 || progress_[at].gate_left.fetch_sub(done, std::memory_order_acq_rel) != done) return;
  quantize(entry);
  progress_[at].ready.store(1, std::memory_order_release);
}

bool ExpertRun::gate_or_up(std::size_t at, std::size_t tile) {
  TileJob jobs[kRowBlock];
  const Entry& entry = entries_[at];
  const std::size_t tiles = entry.packed.gate.count();
  const bool is_up = tile >= tiles;
  if (is_up) tile -= tiles;
  const std::size_t first = tile * kTileRows, n = std::min(kTileRows, ff_ - first);
  float* const to = (is_up ? up_ : h_).data() + first;
  for (std::size_t done = 0; done < entry.count; done += kRowBlock) {
    const std::size_t count = std::min(kRowBlock, entry.count - done);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t pair = entry.first + done + i, row = rows_[pair];
      jobs[i] = {a_.q.q_row(row), a_.q.d_row(row), a_.q.s_row(row), to + pair * ff_};
    }
    (is_up ? entry.packed.up : entry.packed.gate).run(tile, jobs, count);
  }
  const std::uint64_t bit = std::uint64_t{1} << (tile % 64);
  if ((pairs_[at * words_ + tile / 64].fetch_xor(bit, std::memory_order_acq_rel) & bit) == 0) return false;
  for (std::size_t pair = entry.first; pair < entry.first + entry.count; ++pair)
    silu_mul(h_.data() + pair * ff_ + first, up_.data() + pair * ff_ + first, n);
  return true;
}

void ExpertRun::gate_up(const Entry& entry, std::size_t tile) {
  TileJob jobs[kRowBlock];
  float up[kRowBlock * kTileRows];
  const std::size_t at = tile * kTileRows, n = std::min(kTileRows, ff_ - at);
  for (std::size_t done = 0; done < entry.count; done += kRowBlock) {
    const std::size_t count = std::min(kRowBlock, entry.count - done);
    float* hidden = h_.data() + (entry.first + done) * ff_ + at;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t row = rows_[entry.first + done + i];
      jobs[i] = {a_.q.q_row(row), a_.q.d_row(row), a_.q.s_row(row), hidden + i * ff_};
    }
    entry.packed.gate.run(tile, jobs, count);
    for (std::size_t i = 0; i < count; ++i) jobs[i].y = up + i * kTileRows;
    entry.packed.up.run(tile, jobs, count);
    for (std::size_t i = 0; i < count; ++i) silu_mul(hidden + i * ff_, up + i * kTileRows, n);
  }
}

void ExpertRun::quantize(const Entry& entry) {
  for (std::size_t r = entry.first; r < entry.first + entry.count; ++r)
    finite_[r] = quantize_row(h_.data() + r * ff_, ff_, q_.data() + r * ff_, d_.data() + r * (ff_ / 32),
                              s_.data() + r * (ff_ / 16));
}

void ExpertRun::down(const Entry& entry, std::size_t tile) {
  TileJob jobs[kRowBlock];
  const PackedTiles& matrix = entry.packed.down;
  for (std::size_t done = 0; done < entry.count; done += kRowBlock) {
    std::size_t count = 0;
    for (std::size_t r = entry.first + done; r < entry.first + std::min(done + kRowBlock, entry.count); ++r) {
      float* y = out_[r] + tile * kTileRows;
      if (finite_[r])
        jobs[count++] = {q_.data() + r * ff_, d_.data() + r * (ff_ / 32), s_.data() + r * (ff_ / 16), y};
      else  // stays visible: the next quantisation reports the row
        std::fill_n(y, std::min(kTileRows, matrix.rows - tile * kTileRows), NAN);
    }
    matrix.run(tile, jobs, count);
  }
}

void ExpertRun::by_rows(const Entry& entry) {
  thread_local std::vector<float> up;
  thread_local std::vector<TileJob> jobs;
  const ExpertWeights& w = entry.weights;
  float* hidden = h_.data() + entry.first * ff_;
  up.resize(entry.count * ff_);
  const auto product = [&](const WeightView& matrix, float* to) {
    jobs.clear();
    for (std::size_t i = 0; i < entry.count; ++i) {
      const std::size_t row = rows_[entry.first + i];
      if (is_block(matrix))
        jobs.push_back({a_.q.q_row(row), a_.q.d_row(row), a_.q.s_row(row), to + i * ff_});
      else
        matmul_float_rows(matrix, 0, ff_, a_.x.slice(row, 1), Rows(to + i * ff_, 1, ff_));
    }
    if (is_block(matrix)) matmul_block_rows(matrix, 0, ff_, jobs.data(), jobs.size());
  };
  product(w.gate, hidden);
  product(w.up, up.data());
  silu_mul(hidden, up.data(), entry.count * ff_);
  jobs.clear();
  if (is_block(w.down)) quantize(entry);
  for (std::size_t r = entry.first; r < entry.first + entry.count; ++r) {
    if (!is_block(w.down))
      matmul_float_rows(w.down, 0, w.down.rows, ConstRows(h_.data() + r * ff_, 1, ff_), Rows(out_[r], 1, w.down.rows));
    else if (finite_[r])
      jobs.push_back({q_.data() + r * ff_, d_.data() + r * (ff_ / 32), s_.data() + r * (ff_ / 16), out_[r]});
    else
      std::fill_n(out_[r], w.down.rows, NAN);
  }
  if (is_block(w.down)) matmul_block_rows(w.down, 0, w.down.rows, jobs.data(), jobs.size());
}

}  // namespace tandem
