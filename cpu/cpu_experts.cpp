// CpuOps: the expert FFN (docs/numerics.md, R5) over a list of experts and their rows.
//
// Loaded experts run tile by tile in two phases, so that all workers share whatever experts there are: first the gate
// and up tiles of every expert (16 hidden values for all of its rows, multiplied on the spot), then, with the hidden
// rows quantised, the down tiles. A tile is read once for all rows that use the expert.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/kernels/dot_block.h"
#include "cpu/kernels/dot_float.h"
#include "cpu/kernels/elementwise.h"

namespace tandem {

namespace {

bool is_block(const WeightView& w) {
  return dtype_info(w.type).kind == DTypeKind::kBlock;
}

// An expert and what is to be done with it: input rows and where each result goes.
struct Work {
  std::vector<std::uint32_t> rows;
  std::vector<float*> out;
};

// One matrix of a loaded expert.
struct Tiles {
  TileFunction kernel;
  DType type;
  std::size_t rows, cols, tile_bytes;
  const std::uint8_t* data;
  float scale;
  std::size_t count() const { return (rows + kTileRows - 1) / kTileRows; }
  void run(std::size_t tile, const TileJob* jobs, std::size_t job_count) const {
    kernel(data + tile * tile_bytes, cols, jobs, job_count, std::min(kTileRows, rows - tile * kTileRows), scale);
  }
};
struct ExpertTiles {
  Tiles gate, up, down;
};

Tiles tiles_of(TileIsa isa, const ExpertBlobLayout::Part& part, const std::uint8_t* blob, float scale) {
  return {tile_function(isa, part.type), part.type, part.rows, part.cols, part.tile_bytes, blob + part.offset, scale};
}
Tiles tiles_of(TileIsa isa, const PackedMatrix& w) {
  return {tile_function(isa, w.type), w.type, w.rows, w.cols, w.tile_bytes, w.data(), w.scale};
}

// Hidden rows of one call, all experts one after the other.
struct Hidden {
  std::vector<float> h, d;
  std::vector<std::int8_t> q;
  std::vector<std::int32_t> s;
  std::vector<char> finite;
  void resize(std::size_t rows, std::size_t ff) {
    h.resize(rows * ff);
    q.resize(rows * ff);
    d.resize(rows * ff / 32);
    s.resize(rows * ff / 16);
    finite.resize(rows);
  }
};

// (work index, tile) pairs of a phase, in order.
struct Unit {
  std::uint32_t work, tile;
};

void gate_up_tile(const ExpertTiles& expert, std::size_t tile, const Activation& a, const Work& work, float* hidden) {
  thread_local std::vector<TileJob> jobs;
  thread_local std::vector<float> up;
  const std::size_t count = work.rows.size(), ff = expert.gate.rows, at = tile * kTileRows;
  const std::size_t n = std::min(kTileRows, ff - at);
  jobs.resize(count);
  up.resize(count * kTileRows);
  for (std::size_t i = 0; i < count; ++i)
    jobs[i] = {a.q.q_row(work.rows[i]), a.q.d_row(work.rows[i]), a.q.s_row(work.rows[i]), hidden + i * ff + at};
  expert.gate.run(tile, jobs.data(), count);
  for (std::size_t i = 0; i < count; ++i) jobs[i].y = up.data() + i * kTileRows;
  expert.up.run(tile, jobs.data(), count);
  for (std::size_t i = 0; i < count; ++i) silu_mul(hidden + i * ff + at, up.data() + i * kTileRows, n);
}

// One expert from the file's rows, for types that have no tiles. out[i] receives the result of rows[i].
void ffn_rows(const ExpertWeights& w, const Activation& a, const Work& work) {
  thread_local Hidden hidden;
  thread_local std::vector<float> up;
  thread_local std::vector<TileJob> jobs;
  const std::size_t count = work.rows.size(), ff = w.gate.rows;
  hidden.resize(count, ff);
  up.resize(count * ff);
  const auto product = [&](const WeightView& matrix, float* to) {
    jobs.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t row = work.rows[i];
      if (is_block(matrix))
        jobs.push_back({a.q.q_row(row), a.q.d_row(row), a.q.s_row(row), to + i * ff});
      else
        matmul_float_rows(matrix, 0, ff, a.x.slice(row, 1), Rows(to + i * ff, 1, ff));
    }
    if (is_block(matrix)) matmul_block_rows(matrix, 0, ff, jobs.data(), count);
  };
  product(w.gate, hidden.h.data());
  product(w.up, up.data());
  silu_mul(hidden.h.data(), up.data(), count * ff);
  jobs.clear();
  for (std::size_t i = 0; i < count; ++i) {
    float* h = hidden.h.data() + i * ff;
    if (!is_block(w.down)) {
      matmul_float_rows(w.down, 0, w.down.rows, ConstRows(h, 1, ff), Rows(work.out[i], 1, w.down.rows));
      continue;
    }
    std::int8_t* q = hidden.q.data() + i * ff;
    float* d = hidden.d.data() + i * (ff / 32);
    std::int32_t* s = hidden.s.data() + i * (ff / 16);
    if (quantize_row(h, ff, q, d, s))
      jobs.push_back({q, d, s, work.out[i]});
    else
      std::fill_n(work.out[i], w.down.rows, NAN);  // stays visible: the next quantisation reports the row
  }
  if (is_block(w.down)) matmul_block_rows(w.down, 0, w.down.rows, jobs.data(), jobs.size());
}

}  // namespace

// Runs loaded experts; experts[i] does works[i].
template <typename Experts>
static void run_tiles(const CpuOps& ops, const Experts& experts, const std::vector<Work>& works, const Activation& a) {
  thread_local Hidden hidden;
  thread_local std::vector<Unit> units;
  thread_local std::vector<std::size_t> first;
  std::size_t rows = 0;
  first.clear();
  for (const Work& work : works) {
    first.push_back(rows);
    rows += work.rows.size();
  }
  const std::size_t ff = experts[0].gate.rows;
  hidden.resize(rows, ff);
  // thread_local variables of this thread must not be named inside the tasks: each worker would see its own.
  Hidden* const h = &hidden;
  const std::vector<std::size_t>& starts = first;
  std::vector<Unit>& list = units;
  const auto all_tiles = [&](auto count_of) {
    list.clear();
    for (std::size_t i = 0; i < works.size(); ++i)
      for (std::size_t t = 0; t < count_of(experts[i]); ++t)
        list.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(t)});
  };
  const std::size_t depth = std::max<std::size_t>(1, rows / works.size() / 2);  // a row more costs about half a row

  all_tiles([](const ExpertTiles& e) { return e.gate.count(); });
  ops.parallel_tiles(list.size(), 2 * experts[0].gate.cols * depth, [&, h](std::size_t u) {
    const Unit unit = list[u];
    gate_up_tile(experts[unit.work], unit.tile, a, works[unit.work], h->h.data() + starts[unit.work] * ff);
  });
  ops.parallel_tiles(rows, ff / kTileRows, [&, h](std::size_t r) {
    h->finite[r] = quantize_row(h->h.data() + r * ff, ff, h->q.data() + r * ff, h->d.data() + r * (ff / 32),
                                h->s.data() + r * (ff / 16));
  });
  all_tiles([](const ExpertTiles& e) { return e.down.count(); });
  ops.parallel_tiles(list.size(), ff * depth, [&, h](std::size_t u) {
    thread_local std::vector<TileJob> jobs;
    const Unit unit = list[u];
    const Work& work = works[unit.work];
    const Tiles& down = experts[unit.work].down;
    jobs.clear();
    for (std::size_t i = 0; i < work.rows.size(); ++i) {
      const std::size_t r = starts[unit.work] + i;
      float* y = work.out[i] + unit.tile * kTileRows;
      if (h->finite[r])
        jobs.push_back({h->q.data() + r * ff, h->d.data() + r * (ff / 32), h->s.data() + r * (ff / 16), y});
      else
        std::fill_n(y, std::min(kTileRows, down.rows - unit.tile * kTileRows), NAN);
    }
    down.run(unit.tile, jobs.data(), jobs.size());
  });
}

void CpuOps::expert_ffn(const ExpertBank& bank, const Routes& routes, const Activation& a, Rows y) {
  // The (row, rank) pairs of every expert that has any, so that a weight is read once for all its rows.
  std::vector<Work> by_expert(static_cast<std::size_t>(bank.experts));
  for (std::size_t i = 0; i < routes.rows * routes.used; ++i) {
    Work& work = by_expert[static_cast<std::size_t>(routes.expert[i])];
    work.rows.push_back(static_cast<std::uint32_t>(i / routes.used));
    work.out.push_back(y.row(i));
  }
  std::vector<Work> works;
  std::vector<std::int32_t> ids;
  for (std::size_t e = 0; e < by_expert.size(); ++e)
    if (!by_expert[e].rows.empty()) {
      works.push_back(std::move(by_expert[e]));
      ids.push_back(static_cast<std::int32_t>(e));
    }
  const PackedBank* packed = a.q ? weights_.bank(bank) : nullptr;
  if (packed == nullptr) {
    parallel(works.size(), 3 * bank.gate.rows * bank.gate.cols,
             [&](std::size_t i) { ffn_rows(bank.expert(ids[i]), a, works[i]); });
    return;
  }
  std::vector<ExpertTiles> experts;
  const ExpertBlobLayout& layout = packed->layout();
  for (const std::int32_t id : ids) {
    const ExpertWeights w = bank.expert(id);  // for its scales
    const std::uint8_t* blob = packed->blob(id);
    experts.push_back({tiles_of(isa_, layout.gate, blob, w.gate.scale), tiles_of(isa_, layout.up, blob, w.up.scale),
                       tiles_of(isa_, layout.down, blob, w.down.scale)});
  }
  run_tiles(*this, experts, works, a);
}

void CpuOps::ffn(const ExpertWeights& weights, const Activation& a, Rows y) {
  const PackedMatrix* gate = a.q ? weights_.matrix(weights.gate) : nullptr;
  const PackedMatrix* up = a.q ? weights_.matrix(weights.up) : nullptr;
  const PackedMatrix* down = weights_.matrix(weights.down);
  const auto rows_from = [&](std::size_t first, std::size_t last) {
    Work work;
    for (std::size_t r = first; r < last; ++r) {
      work.rows.push_back(static_cast<std::uint32_t>(r));
      work.out.push_back(y.row(r));
    }
    return work;
  };
  if (gate != nullptr && up != nullptr && down != nullptr) {
    const std::vector<ExpertTiles> expert{{tiles_of(isa_, *gate), tiles_of(isa_, *up), tiles_of(isa_, *down)}};
    run_tiles(*this, expert, {rows_from(0, y.rows)}, a);
    return;
  }
  constexpr std::size_t kStrip = 8;
  parallel((y.rows + kStrip - 1) / kStrip, kStrip * 3 * weights.gate.rows * weights.gate.cols,
           [&](std::size_t i) { ffn_rows(weights, a, rows_from(i * kStrip, std::min(y.rows, (i + 1) * kStrip))); });
}

}  // namespace tandem
