#include "gpu/kernels/name_experts.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/float_product.cuh"
#include "gpu/kernels/last_block.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/meeting.cuh"
#include "gpu/kernels/route.cuh"
#include "gpu/kernels/router.h"

namespace tandem::gpu {

namespace {

constexpr unsigned kMostPairs = kRouterRows * kWarp;
constexpr unsigned kThreads = 128;  // of a block, at least

struct TailShared {
  RouteShared routing[kMostPairs / kWarp];
  std::int32_t expert[kMostPairs];
  float weight[kMostPairs];
  float sum[kMostPairs];  // of an expert's weights where it is met first; 0: not to be named
};

// By the block that ends last.
__device__ __noinline__ void choose(unsigned rows, const NameArgs& args, const ConstDeviceRows& logits,
                                    unsigned char* shared) {
  auto& tail = *reinterpret_cast<TailShared*>(shared);
  const auto used = static_cast<unsigned>(args.used);
  const unsigned n = rows * used, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, lane = threadIdx.x % kWarp;
  for (unsigned r = warp; r < rows; r += warps) {
    const Routed routed = route_row(logits, r, used, args.bad_row, tail.routing[warp]);
    if (lane >= used) continue;
    tail.expert[r * used + lane] = routed.expert;
    tail.weight[r * used + lane] = routed.weight;
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
    const std::int32_t expert = tail.expert[i];
    const bool off = expert >= 0 && args.slots[expert] == nullptr;
    float sum = 0.0F;
    for (unsigned k = 0; off && k < n; ++k) {
      if (tail.expert[k] != expert) continue;
      if (k < i) {
        sum = 0.0F;
        break;
      }
      sum += tail.weight[k];
    }
    tail.sum[i] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
  for (unsigned k = 0; k < kNames; ++k) {
    std::uint32_t best = 0;
    unsigned at = 0;
    for (unsigned i = lane; i < n; i += kWarp)
      if (const std::uint32_t key = __float_as_uint(tail.sum[i]); key > best) best = key, at = i;  // not negative
    const std::uint32_t top = __reduce_max_sync(kAllLanes, best);
    const unsigned winner = __reduce_min_sync(kAllLanes, best == top ? at : kMostPairs);
    if (lane == 0) {
      args.list[k] = args.told[k] = top > 0 ? tail.expert[winner] : -1;
      if (top > 0) tail.sum[winner] = 0.0F;
    }
    __syncwarp();
  }
  if (lane != 0) return;
  store_release(args.bell, *args.first_number + args.index);
}

template <typename T, unsigned kRows>
__global__ void __launch_bounds__(kMostPairs)
    name_kernel(const __grid_constant__ ProductArgs<T> a, const __grid_constant__ NameArgs args,
                const __grid_constant__ ConstDeviceRows logits) {
  extern __shared__ __align__(16) unsigned char shared[];
  const unsigned groups = (a.rows + kRows - 1) / kRows;
  product_block<T, kRows, 1>(a, a.part[0], blockIdx.x / groups, blockIdx.x % groups * kRows,
                             reinterpret_cast<float*>(shared));
  if (comes_last(args.arrived, gridDim.x)) choose(a.rows, args, logits, shared);
}

template <typename T, unsigned kRows>
void launch(const ProductArgs<T>& product, const NameArgs& args, DeviceStream stream) {
  const unsigned warps = std::min(std::max(product_warps(product.cols), kThreads / kWarp), kMostPairs / kWarp);
  const std::size_t shared = std::max(product_shared_bytes(product.cols, kRows), sizeof(TailShared));
  const unsigned groups = (product.rows + kRows - 1) / kRows;
  launch_kernel(name_kernel<T, kRows>, product.part[0].n * groups, warps * kWarp, shared, stream, product, args,
                ConstDeviceRows(args.router.y));
}

}  // namespace

void name_experts(const NameArgs& args, DeviceStream stream) {
  const std::size_t rows = args.x.rows, cols = args.x.cols, experts = args.router.n;
  LAUNCH_CHECK(rows >= 1 && rows <= kRouterRows && experts <= kItems * kWarp && args.used > 0 && args.used <= kWarp &&
                   args.used <= experts,
               rows, experts, args.used);
  LAUNCH_CHECK(
      cols > 0 && cols <= kMaxSegments * kSegment && args.router.y.cols == experts && args.router.y.rows == rows, cols,
      args.router.y.cols);
  for_type(args.type, [&]<typename T>(T) {
    ProductArgs<T> product{};
    product.cols = static_cast<unsigned>(cols);
    product.x = args.x.data, product.x_stride = args.x.stride, product.rows = static_cast<unsigned>(rows);
    product.parts = 1;
    product.part[0] = {static_cast<const T*>(args.router.weights), args.router.y.data, args.router.y.stride,
                       static_cast<unsigned>(experts), args.router.scale};
    if (rows > 2 && product_shared_bytes(product.cols, 4) <= kProductSharedBytes - 64)
      launch<T, 4>(product, args, stream);
    else if (rows > 1)
      launch<T, 2>(product, args, stream);
    else
      launch<T, 1>(product, args, stream);
  });
}

}  // namespace tandem::gpu
