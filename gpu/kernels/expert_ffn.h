// The expert feed-forward network on the card (docs/numerics.md, R5).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "gpu/kernels/expert_jobs.h"
#include "gpu/kernels/tile_product.h"
#include "runtime/expert_blob.h"

namespace tandem {

// Work memory of a layer's experts for one group of rows; every pointer in device memory, `pairs` pairs of `ff` hidden
// values. The same memory serves any number of layers and calls on one stream.
struct ExpertScratch {
  ExpertJob* jobs = nullptr;          // [pairs]
  std::int32_t* job_count = nullptr;  // [1]
  std::int32_t* bad = nullptr;        // [pairs] 1 where a hidden value is not finite
  std::int8_t* q = nullptr;           // [pairs, ff]
  float* d = nullptr;                 // [pairs, ff / 32]
  std::int32_t* s = nullptr;          // [pairs, ff / 16]
  float* gate = nullptr;              // [pairs, ff], only used when gate and up have different types
  float* up = nullptr;
  std::size_t pairs = 0;
};
// Bytes that make_scratch cuts from one piece of device memory, aligned to 256 bytes.
std::size_t expert_scratch_bytes(std::size_t pairs, std::size_t ff);
ExpertScratch make_expert_scratch(void* memory, std::size_t pairs, std::size_t ff);

// Output scales per expert in device memory, or null: they multiply those of the layout's views (NVFP4 files).
struct ExpertScales {
  const float* gate = nullptr;
  const float* up = nullptr;
  const float* down = nullptr;
  float gate_all = 1.0F, up_all = 1.0F, down_all = 1.0F;  // WeightView::scale of the three
};

// y[pair * y_stride ..] = FFN of the pair's expert on its row, for the pairs whose expert is on the card; other rows of
// y are left alone. A row with a hidden value that is not finite becomes NaN. x has routes.rows rows. Rows are taken in
// groups of scratch.pairs / used. listed: scratch.jobs, job_count and bad are those of the routes already, with
// pairs_per_job(rows) pairs of a job (gpu/kernels/route_split.h); then all pairs must fit.
// REQUIRES load_tile_kernels(), ff % 32 == 0, scratch.pairs >= routes.used.
void launch_expert_ffn(const ExpertBlobLayout& layout, const ExpertScales& scales, const DeviceRoutes& routes,
                       const DeviceQuant& x, float* y, std::size_t y_stride, const ExpertScratch& scratch,
                       cudaStream_t stream, bool listed = false);

// The same for one expert that every row uses (the shared expert): y [rows, y_stride].
void launch_ffn(const DeviceTiles& gate, const DeviceTiles& up, const DeviceTiles& down, const DeviceQuant& x,
                std::size_t rows, float* y, std::size_t y_stride, const ExpertScratch& scratch, cudaStream_t stream,
                TileRoute route = TileRoute::kAuto);

}  // namespace tandem
