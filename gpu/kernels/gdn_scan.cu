#include "gpu/kernels/gdn_scan.h"

#include <cuda_pipeline_primitives.h>

#include "gpu/cuda_check.h"
#include "gpu/kernels/gdn_chain.cuh"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"

namespace tandem::gpu {

namespace {

constexpr unsigned kTile = 16;  // rows whose keys and queries are in shared memory at a time
constexpr unsigned kThreads = 64;

struct ScanArgs {
  DeviceGdnScan s;
  unsigned dim;
  unsigned replay_rows;
};

// kSegments = segments of a column, padded to a power of two; kWhole: every segment has 32 elements.
template <unsigned kSegments, bool kWhole>
struct Scan {
  static constexpr unsigned kColumns = kThreads / kSegments;
  using Keys = float[kTile][kSegments * kPitch];
  struct Values {
    float v[kTile][kColumns];
    float decay[kTile], beta[kTile];
  };
  // Two tiles of rows: one is worked on while the next comes. The rows to replay are in the second one's place before.
  struct Tile {
    alignas(16) Keys k;
    alignas(16) Keys q;
    Values values;
  };
  struct Shared {
    Tile tile[2];
  };

  const ScanArgs& args;
  Shared& shared;
  unsigned head, key_head, segment, column, first_column;
  float s[kChain];

  __device__ unsigned dim() const { return kWhole ? kSegments * kChain : args.dim; }
  __device__ bool inside(unsigned i) const { return kWhole || segment * kChain + i < args.dim; }

  // Rows first .. first + count - 1 of x into shared memory: one key head, this block's values, a scalar per row. All
  // copies are begun before one is waited for.
  __device__ void stage(Keys& to, const ConstDeviceRows& x, std::size_t first, unsigned count) const {
    if constexpr (kWhole) {  // four values at a time
      constexpr unsigned kQuads = kSegments * kChain / 4;
      for (unsigned at = threadIdx.x; at < count * kQuads; at += kThreads) {
        const unsigned r = at / kQuads, i = at % kQuads * 4;
        __pipeline_memcpy_async(&to[r][i / kChain * kPitch + i % kChain],
                                x.data + (first + r) * x.stride + std::size_t{key_head} * dim() + i, 4 * sizeof(float));
      }
    } else {
      for (unsigned at = threadIdx.x; at < count * dim(); at += kThreads) {
        const unsigned r = at / dim(), i = at % dim();
        __pipeline_memcpy_async(&to[r][i / kChain * kPitch + i % kChain],
                                x.data + (first + r) * x.stride + std::size_t{key_head} * dim() + i, sizeof(float));
      }
    }
  }
  __device__ void stage_values(Values& to, const ConstDeviceRows& x, std::size_t first, unsigned count) const {
    for (unsigned at = threadIdx.x; at < count * kColumns; at += kThreads) {
      const unsigned r = at / kColumns, c = at % kColumns;
      if (first_column + c < dim())
        __pipeline_memcpy_async(
            &to.v[r][c], x.data + (first + r) * x.stride + std::size_t{head} * dim() + first_column + c, sizeof(float));
    }
  }
  __device__ void stage_scalar(float (&to)[kTile], const ConstDeviceRows& x, std::size_t first, unsigned count) const {
    if (threadIdx.x < count)
      __pipeline_memcpy_async(&to[threadIdx.x], x.data + (first + threadIdx.x) * x.stride + head, sizeof(float));
  }
  __device__ void stage_rows(Tile& to, std::size_t first, unsigned count) const {
    stage(to.k, args.s.k, first, count);
    stage(to.q, args.s.q, first, count);
    stage_values(to.values, args.s.v, first, count);
    stage_scalar(to.values.decay, args.s.decay, first, count);
    stage_scalar(to.values.beta, args.s.beta, first, count);
  }
  __device__ static void wait_staged() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
  }
  __device__ void load(const float (&from)[kSegments * kPitch], float (&x)[kChain]) const {
    load_chain(from, segment, x);
  }
  __device__ static float tree(float v) { return segment_tree<kSegments>(v); }

  __device__ void replay_row(const Tile& tile, unsigned r) {
    float k[kChain];
    load(tile.k[r], k);
    const float decay = tile.values.decay[r], u = tile.values.v[r][column];
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) s[i] = __fmaf_rn(k[i], u, decay * s[i]);
  }

  // Rows 0 .. count - 1 of the tile, which are rows first .. of the pass. The output of a row and the first product of
  // the next read the same state: their chains run side by side.
  __device__ void rows(const Tile& tile, std::size_t first, unsigned count) {
    const std::size_t at = std::size_t{head} * dim() + first_column + column;
    const bool writes = segment == 0 && first_column + column < dim();
    float q[kChain];
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i) q[i] = 0.0F;
    for (unsigned r = 0; r < count; ++r) {
      float k[kChain];
      load(tile.k[r], k);
      const float decay = tile.values.decay[r];
      float out = 0.0F, acc = 0.0F;
#pragma unroll
      for (unsigned i = 0; i < kChain; ++i)
        if (inside(i)) {
          out = __fmaf_rn(s[i], q[i], out);
          s[i] = decay * s[i];
          acc = __fmaf_rn(s[i], k[i], acc);
        }
      const float u = tile.values.beta[r] * (tile.values.v[r][column] - tree(acc));
      if (r > 0) write_out(first + r - 1, at, tree(out), writes);
      load(tile.q[r], q);
#pragma unroll
      for (unsigned i = 0; i < kChain; ++i)
        if (inside(i)) s[i] = __fmaf_rn(k[i], u, s[i]);
      if (writes && args.s.log_u.data != nullptr) args.s.log_u.data[(first + r) * args.s.log_u.stride + at] = u;
    }
    float out = 0.0F;
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) out = __fmaf_rn(s[i], q[i], out);
    write_out(first + count - 1, at, tree(out), writes);
  }
  __device__ void write_out(std::size_t t, std::size_t at, float out, bool writes) const {
    if (writes) args.s.out.data[t * args.s.out.stride + at] = out;
  }

  __device__ float* cell(unsigned i) const {
    return args.s.state + (std::size_t{head} * dim() + segment * kChain + i) * dim() + first_column + column;
  }
  __device__ void store() const {
    if (first_column + column >= args.dim) return;
#pragma unroll
    for (unsigned i = 0; i < kChain; ++i)
      if (inside(i)) *cell(i) = s[i];
  }
};

template <unsigned kSegments, bool kWhole>
__global__ void __launch_bounds__(kThreads) scan_kernel(const __grid_constant__ ScanArgs args) {
  using Body = Scan<kSegments, kWhole>;
  __shared__ typename Body::Shared shared;
  Body body{args,
            shared,
            blockIdx.y,
            blockIdx.y % static_cast<unsigned>(args.s.key_heads),
            threadIdx.x % kSegments,
            threadIdx.x / kSegments,
            blockIdx.x * Body::kColumns,
            {}};
  const bool live = body.first_column + body.column < body.dim();
#pragma unroll
  for (unsigned i = 0; i < kChain; ++i) body.s[i] = live && body.inside(i) ? *body.cell(i) : 0.0F;
  // The state was written by the last scan of this layer, which is not the kernel before this one: that one makes the
  // rows.
  begin_kernel();

  const std::size_t rows = args.s.q.rows;
  const auto tile = [rows](std::size_t first) {
    return static_cast<unsigned>(rows - first < kTile ? rows - first : kTile);
  };
  body.stage_rows(shared.tile[0], 0, tile(0));
  const unsigned replay =
      args.s.replay_count == nullptr ? args.replay_rows : min(static_cast<unsigned>(*args.s.replay_count), kTile);
  if (replay > 0) {
    typename Body::Tile& to = shared.tile[1];
    body.stage(to.k, args.s.replay_k, 0, replay);
    body.stage_values(to.values, args.s.replay_u, 0, replay);
    body.stage_scalar(to.values.decay, args.s.replay_decay, 0, replay);
  }
  Body::wait_staged();
  if (replay > 0) {
    for (unsigned r = 0; r < replay; ++r) body.replay_row(shared.tile[1], r);
    if (args.s.log_u.data != nullptr) body.store();
    __syncthreads();  // the second place is free
  }
  unsigned now = 0;
  for (std::size_t first = 0; first < rows; first += kTile, now ^= 1U) {
    if (first + kTile < rows) body.stage_rows(shared.tile[now ^ 1U], first + kTile, tile(first + kTile));
    body.rows(shared.tile[now], first, tile(first));
    if (first + kTile < rows) Body::wait_staged();
  }
  if (args.s.log_u.data == nullptr) body.store();
}

template <unsigned kSegments>
void launch(const ScanArgs& args, DeviceStream stream) {
  constexpr unsigned kColumns = kThreads / kSegments;
  const dim3 grid((args.dim + kColumns - 1) / kColumns, static_cast<unsigned>(args.s.value_heads));
  const auto quads = [](const ConstDeviceRows& x) {
    return x.rows == 0 || (x.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0);
  };
  if (args.dim == kSegments * kChain && quads(args.s.k) && quads(args.s.q) && quads(args.s.replay_k))
    launch_kernel(scan_kernel<kSegments, true>, grid, kThreads, 0, stream, args);
  else
    launch_kernel(scan_kernel<kSegments, false>, grid, kThreads, 0, stream, args);
}

}  // namespace

void gdn_scan(const DeviceGdnScan& scan, DeviceStream stream) {
  LAUNCH_CHECK(scan.dim > 0 && scan.dim <= 4 * kChain && scan.replay_k.rows <= kTile && scan.key_heads > 0 &&
                   scan.k.rows == scan.q.rows && scan.v.rows == scan.q.rows,
               scan.dim, scan.replay_k.rows, scan.key_heads, scan.q.rows, scan.k.rows, scan.v.rows);
  const ScanArgs args{scan, static_cast<unsigned>(scan.dim), static_cast<unsigned>(scan.replay_k.rows)};
  if (scan.dim <= kChain)
    launch<1>(args, stream);
  else if (scan.dim <= 2 * kChain)
    launch<2>(args, stream);
  else
    launch<4>(args, stream);
}

}  // namespace tandem::gpu
