// CudaOps: experts that the card reads from RAM by itself (gpu/zero_copy.h).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <span>

#include "gpu/cuda_check.h"
#include "gpu/cuda_ops.h"
#include "runtime/expert_store.h"

namespace tandem {

namespace {

constexpr std::size_t kFew = 2, kMany = 8, kSamples = 7;

// A bank with enough experts in RAM for kMany of them; its experts there.
std::vector<std::int32_t> experts_in_ram(const ExpertStore& store, int experts, int* bank) {
  std::vector<std::int32_t> list;
  for (*bank = 0; *bank < store.banks(); ++*bank) {
    list.clear();
    if (store.layout(*bank) == nullptr) continue;
    for (std::int32_t e = 0; e < experts; ++e)
      if (!store.on_card(*bank, e) && store.blob(*bank, e) != nullptr) list.push_back(e);
    if (list.size() >= kMany) return list;
  }
  return {};
}

}  // namespace

// What one expert more costs the kernels that compute experts when it lies in RAM: both halves of the FFN wait for
// PCIe, so this is more than its bytes over the rate of a copy.
void CudaOps::prepare_zero_copy(const ExpertStore& store, Experts& experts) {
  int same_address = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device_));
  if (same_address == 0 || !store.ram_pinned()) return;
  int bank = 0;
  const std::vector<std::int32_t> list = experts_in_ram(store, experts.experts, &bank);
  if (list.empty()) return;
  const ExpertBlobLayout& layout = *store.layout(bank);
  const std::size_t cols = layout.gate.cols, out = layout.down.rows;
  std::vector<const std::uint8_t*> blobs(static_cast<std::size_t>(experts.experts));
  for (const std::int32_t e : list) blobs[static_cast<std::size_t>(e)] = store.blob(bank, e);
  const auto table = Array<const std::uint8_t*>::of(memory_, blobs);
  const auto ids = Array<std::int32_t>::of(memory_, list);
  const Array<std::int8_t> q(memory_, cols);
  const Array<float> d(memory_, cols / 32), y(memory_, kMany * out);
  const Array<std::int32_t> s(memory_, cols / 16);
  cudaEvent_t begin = nullptr, end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::size_t next = 0;
  const auto seconds = [&](std::size_t count) {
    if (next + count > list.size()) next = 0;
    CUDA_CHECK(cudaEventRecord(begin, stream_));
    launch_expert_ffn(layout, {}, {ids.data() + next, 1, count, table.data()}, {q.data(), d.data(), s.data()}, y.data(),
                      out, expert_scratch_, stream_);
    CUDA_CHECK(cudaEventRecord(end, stream_));
    CUDA_CHECK(cudaEventSynchronize(end));
    next += count;
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms) * 1e-3;
  };
  static_cast<void>(seconds(kMany));  // the first launch chooses its cut
  std::array<double, kSamples> costs;
  for (double& cost : costs) cost = (seconds(kMany) - seconds(kFew)) / static_cast<double>(kMany - kFew);
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  std::nth_element(costs.begin(), costs.begin() + kSamples / 2, costs.end());
  share_.set_card(std::max(1e-6, costs[kSamples / 2]));
  experts.ram = Staged<const std::uint8_t*>(memory_, experts.slots.size());
}

// The routes as the router chose them; those that the card computed from RAM are counted.
void CudaOps::settle_logs(const std::vector<RouteLog>& logs) {
  for (const RouteLog& log : logs) {
    std::size_t experts = 0;
    const std::span<std::int32_t> ids(log.ids, log.count);
    for (auto at = ids.begin(); at != ids.end(); ++at) {
      if (*at < gpu::kInPlace) continue;
      *at -= gpu::kInPlace;
      experts += std::find(ids.begin(), at, *at) == at ? 1U : 0U;
    }
    if (experts > 0) log.bank->store()->count_in_place(experts);
  }
}

}  // namespace tandem
