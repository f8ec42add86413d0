// What the tests of the card share: they are skipped, with the reason, where there is none, and end by a watchdog when
// a kernel hangs.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "gpu/cuda_check.h"
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

// Page-locked memory that both sides use.
template <typename T>
class Shared {
 public:
  explicit Shared(std::size_t size, T value = {}) : size_(size) {
    CUDA_CHECK(cudaHostAlloc(reinterpret_cast<void**>(&data_), size * sizeof(T), cudaHostAllocMapped));
    std::fill_n(data_, size, value);
  }
  ~Shared() { static_cast<void>(cudaFreeHost(data_)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* get() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }
  std::vector<T> values() const { return {data_, data_ + size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace tandem::testing
