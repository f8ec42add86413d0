#include "gpu/kernels/route.h"

#include "gpu/cuda_check.h"
#include "gpu/kernels/launch.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/route.cuh"

namespace tandem::gpu {

namespace {

__global__ void route_kernel(ConstDeviceRows logits, unsigned used, std::int32_t* expert, float* weight,
                             std::int32_t* bad) {
  begin_kernel();
  __shared__ RouteShared shared;
  const Routed routed = route_row(logits, blockIdx.x, used, bad, shared);
  if (threadIdx.x >= used || routed.expert < 0) return;
  const std::size_t pair = std::size_t{blockIdx.x} * used + threadIdx.x;
  expert[pair] = routed.expert;
  weight[pair] = routed.weight;
}

}  // namespace

void route(ConstDeviceRows logits, std::size_t used, std::int32_t* expert, float* weight, std::int32_t* bad,
           DeviceStream stream) {
  LAUNCH_CHECK(logits.cols <= kItems * kWarp && used > 0 && used <= kWarp && used <= logits.cols, logits.cols, used);
  if (logits.rows == 0) return;
  launch_kernel(route_kernel, static_cast<unsigned>(logits.rows), kWarp, 0, stream, logits, static_cast<unsigned>(used),
                expert, weight, bad);
}

}  // namespace tandem::gpu
