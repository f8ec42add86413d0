#include "gpu/kernels/router.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/kernels/async_copy.cuh"
#include "gpu/kernels/expert_jobs.cuh"
#include "gpu/kernels/float_product.cuh"
#include "gpu/kernels/last_block.cuh"
#include "gpu/kernels/launch_check.h"
#include "gpu/kernels/meeting.cuh"
#include "gpu/kernels/route.cuh"

namespace tandem::gpu {

namespace {

constexpr unsigned kMostPairs = kRouterRows * kWarp;  // threads of a block, too
constexpr unsigned kMostExperts = kItems * kWarp;
constexpr unsigned kMinThreads = 128;                    // of a block
constexpr std::size_t kRoom = kProductSharedBytes - 64;  // beside the words that are not dynamic
static_assert(kMostPairs >= kProductWarps * kWarp);

// Of the block that ends last, after its product.
struct TailShared {
  RouteShared routing[kMostPairs / kWarp];
  JobsShared<kMostPairs> listing;
  const std::uint8_t* slots[kMostExperts];
  std::int32_t expert[kMostPairs];
};

// By the block that ends last: choice, split, job list and hand-off. A function of its own, as it would otherwise take
// registers from the products.
__device__ __noinline__ void after_product(unsigned rows, unsigned experts, const RouterArgs& args,
                                           const ConstDeviceRows& logits, int per_job, unsigned char* shared) {
  const MeetingArgs& meeting = args.meeting;
  auto& tail = *reinterpret_cast<TailShared*>(shared);
  const auto used = static_cast<unsigned>(args.used);
  const unsigned n = rows * used, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, i = threadIdx.x;
  // What only the host writes, between passes: on its way beside the logits. No result makes a way over global memory.
  for (unsigned e = i; e < experts; e += blockDim.x) copy_small<8>(tail.slots + e, args.slots + e);
  for (unsigned r = warp; r < rows; r += warps) {
    const Routed routed = route_row(logits, r, used, args.bad_row, tail.routing[warp]);
    const unsigned lane = i % kWarp, pair = r * used + lane;
    if (lane >= used) continue;
    tail.expert[pair] = routed.expert;
    if (routed.expert < 0) continue;
    args.expert[pair] = routed.expert;
    args.weight[pair] = routed.weight;
  }
  commit_copies();
  // Off the card, but fetched in time: by threads of the last warp, which has no row where there is another.
  const FetchedExperts& fetched = args.fetched;
  const unsigned place = blockDim.x - 1 - i;
  const bool brought = fetched.tag != nullptr && place < kNames &&
                       load_acquire(fetched.tag + place) == *meeting.first_number + meeting.index;
  wait_copies<0>();
  __syncthreads();
  if (fetched.tag != nullptr) {
    if (brought) tail.slots[fetched.list[place]] = fetched.places + place * fetched.stride;
    __syncthreads();
  }
  const std::int32_t expert = i < n ? tail.expert[i] : -1;
  const std::uint8_t* const blob = expert >= 0 ? tail.slots[expert] : nullptr;
  const std::int32_t hit = blob != nullptr ? expert : -1, miss = blob != nullptr ? -1 : expert;
  if (i < n) {
    args.hit[i] = hit;
    args.miss[i] = miss;
    args.log[i] = expert;
    args.bad_pair[i] = 0;
    if (meeting.rows > 0) meeting.memory.miss[i] = miss;
  }
  const int misses = __syncthreads_count(miss >= 0);
  // A warp without pairs tells the crew, which may be waited for, while the others list the card's jobs.
  const bool apart = meeting.rows > 0 && n <= (warps - 1) * kWarp;
  if (apart && warp == warps - 1) return ring(meeting, misses);
  list_jobs(hit, blob, static_cast<int>(n), static_cast<int>(used), per_job, args.jobs, args.job_count, tail.listing,
            Warps{static_cast<int>(apart ? warps - 1 : warps)});
  if (meeting.rows > 0 && !apart && warp == 0) ring(meeting, misses);
}

template <typename T, unsigned kRows, unsigned kOut>
__global__ void __launch_bounds__(kMostPairs)
    router_kernel(const __grid_constant__ ProductArgs<T> a, const __grid_constant__ RouterArgs args,
                  const __grid_constant__ ConstDeviceRows logits, int per_job) {
  extern __shared__ __align__(16) unsigned char shared[];
  const MeetingArgs& meeting = args.meeting;
  const unsigned groups = (a.rows + kRows - 1) / kRows, own = (a.part[0].n + kOut - 1) / kOut;
  const unsigned other = a.parts > 1 ? (a.part[1].n + kOut - 1) / kOut : 0;
  // Groups of rows side by side, so that the second one finds the weights in the L2 cache.
  unsigned block = blockIdx.x / groups;
  if (block < own + other) {
    const bool second = block >= own;
    if (second) block -= own;
    product_block<T, kRows, kOut>(a, a.part[second ? 1 : 0], block * kOut, blockIdx.x % groups * kRows,
                                  reinterpret_cast<float*>(shared));
  } else {
    begin_kernel();
    publish_row(meeting, args.quantized, blockIdx.x - (own + other) * groups);
    __threadfence_system();
  }
  if (!comes_last(args.arrived, gridDim.x)) return;
  after_product(a.rows, a.part[0].n, args, logits, per_job, shared);
}

template <typename T, unsigned kRows, unsigned kOut>
void launch(const ProductArgs<T>& products, const RouterArgs& args, DeviceStream stream) {
  const unsigned groups = (products.rows + kRows - 1) / kRows, n = products.rows * static_cast<unsigned>(args.used);
  unsigned blocks = args.meeting.rows > 0 ? products.rows : 0;
  for (unsigned i = 0; i < products.parts; ++i) blocks += (products.part[i].n + kOut - 1) / kOut * groups;
  const unsigned warps = std::min(
      std::max({product_warps(products.cols), (n + kWarp - 1) / kWarp + 1, kMinThreads / kWarp}), kMostPairs / kWarp);
  const std::size_t shared = std::max(product_shared_bytes(products.cols, kOut * kRows), sizeof(TailShared));
  launch_kernel(router_kernel<T, kRows, kOut>, blocks, warps * kWarp, shared, stream, products, args,
                ConstDeviceRows(args.router.y), pairs_per_job(products.rows));
}

}  // namespace

void router(const RouterArgs& args, DeviceStream stream) {
  const std::size_t rows = args.x.rows, cols = args.x.cols, experts = args.router.n;
  LAUNCH_CHECK(rows >= 1 && rows <= kRouterRows && experts <= kItems * kWarp && args.used > 0 && args.used <= kWarp &&
                   args.used <= experts,
               rows, experts, args.used);
  LAUNCH_CHECK(cols > 0 && cols <= kMaxSegments * kSegment && args.router.y.cols == experts, cols, args.router.y.cols);
  LAUNCH_CHECK(
      args.meeting.rows == 0 || (args.meeting.rows == rows && args.meeting.used == args.used && cols % 32 == 0),
      args.meeting.rows, args.meeting.used, cols);
  for_type(args.type, [&]<typename T>(T) {
    ProductArgs<T> products{};
    products.cols = static_cast<unsigned>(cols);
    products.x = args.x.data, products.x_stride = args.x.stride, products.rows = static_cast<unsigned>(rows);
    for (const FloatMatmul* product : {&args.router, &args.other}) {
      if (product->n == 0) continue;
      LAUNCH_CHECK(product->y.cols == product->n && product->y.rows == rows, product->y.cols, product->y.rows);
      products.part[products.parts++] = {static_cast<const T*>(product->weights), product->y.data, product->y.stride,
                                         static_cast<unsigned>(product->n), product->scale};
    }
    // As of float_matmuls, where a router has some hundred rows.
    if (rows > 4 && product_shared_bytes(products.cols, 8) <= kRoom)
      launch<T, 4, 2>(products, args, stream);
    else if (rows > 2 && product_shared_bytes(products.cols, 4) <= kRoom)
      launch<T, 4, 1>(products, args, stream);
    else if (rows > 1)
      launch<T, 2, 1>(products, args, stream);
    else
      launch<T, 1, 1>(products, args, stream);
  });
}

}  // namespace tandem::gpu
