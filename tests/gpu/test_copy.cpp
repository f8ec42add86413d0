// The build of the card's code itself: a copy kernel, its tail, and owned memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "gpu/cuda_check.h"
#include "gpu/kernels/copy.h"
#include "tests/gpu/gpu_test.h"

namespace tandem::testing {
namespace {

using Copy = GpuTest;

TEST_F(Copy, CopiesEveryByteAndNoMore) {
  for (const std::size_t words : {4U, 8U, 4092U, 4096U, 4100U, 100000U}) {
    std::vector<std::uint32_t> from(words), to(words + 4, 7U);
    std::iota(from.begin(), from.end(), 1U);
    const auto device_from = on_device(from), device_to = on_device(to);
    launch_copy(device_to.get(), device_from.get(), 4 * words, nullptr);
    CUDA_CHECK(cudaDeviceSynchronize());
    device_to.download(to.data());
    for (std::size_t i = 0; i < words; ++i) ASSERT_EQ(to[i], from[i]) << i << " of " << words;
    for (std::size_t i = 0; i < 4; ++i) ASSERT_EQ(to[words + i], 7U) << words;
  }
}

TEST_F(Copy, BuffersMove) {
  DeviceBuffer<float> a(10), b;
  float* const memory = a.get();
  b = std::move(a);
  EXPECT_EQ(b.get(), memory);
  EXPECT_EQ(b.bytes(), 40U);
  PinnedBuffer<float> pinned(3);
  pinned.get()[2] = 4.0F;
  EXPECT_EQ(pinned.get()[2], 4.0F);
}

}  // namespace
}  // namespace tandem::testing
