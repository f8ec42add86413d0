// What the tests of the card share: they are skipped, with the reason, where there is none, and end by a watchdog when
// a kernel hangs.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "gpu/device_buffer.h"

namespace tandem::testing {

class GpuTest : public ::testing::Test {
 protected:
  static constexpr unsigned kWatchdogSeconds = 120;

  void SetUp() override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
      GTEST_SKIP() << "no CUDA device: " << (error != cudaSuccess ? cudaGetErrorString(error) : "none found");
    alarm(kWatchdogSeconds);
  }
  void TearDown() override { alarm(0); }
};

// A buffer with the values of a container.
template <typename Container>
DeviceBuffer<typename Container::value_type> on_device(const Container& values) {
  DeviceBuffer<typename Container::value_type> buffer(values.size());
  buffer.upload(values.data());
  return buffer;
}

}  // namespace tandem::testing
