// One call of a kernel on copies of host arrays: every array lies on the card between guards of its own, at an address
// that is aligned to its element and to nothing more, and gaps between rows are guards too. After the call the guards
// and the inputs must be as they were; outputs are copied back.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "gpu/kernels/device_rows.h"
#include "runtime/tensor.h"

namespace tandem::testing {

class CardCall {
 public:
  CardCall() { arena().used = 0; }
  ~CardCall() { finish(); }
  CardCall(const CardCall&) = delete;
  CardCall& operator=(const CardCall&) = delete;

  template <typename T>
  DeviceRowsOf<const T> in(RowsOf<const T> x) {
    return place<const T>(const_cast<T*>(x.data), x.rows, x.cols, x.stride, false);
  }
  template <typename T>
  DeviceRowsOf<T> out(RowsOf<T> x) {
    return place<T>(x.data, x.rows, x.cols, x.stride, true);
  }
  template <typename T>
  const T* values(const T* x, std::size_t n) {
    return in(RowsOf<const T>(x, 1, n)).data;
  }
  template <typename T>
  T* changed(T* x, std::size_t n) {
    return out(RowsOf<T>(x, 1, n)).data;
  }
  // A scalar of the card's memory.
  DeviceCount count(std::size_t n) {
    scalars_.push_back(std::make_unique<std::int32_t>(static_cast<std::int32_t>(n)));
    return values(scalars_.back().get(), 1);
  }
  // Bytes that mean nothing after the call.
  void* work(std::size_t bytes) {
    Arena& a = arena();
    a.used = (a.used + 255) / 256 * 256;
    void* at = a.memory.get() + a.used;
    a.used += bytes;
    CHECK(a.used <= a.memory.size(), "{} bytes in one call", a.used);
    CUDA_CHECK(cudaMemset(at, 0xFF, bytes));
    return at;
  }

  // Waits, checks, copies back. Once; the destructor does it otherwise.
  void finish() {
    if (finished_) return;
    finished_ = true;
    CUDA_CHECK(cudaDeviceSynchronize());
    for (Region& region : regions_) {
      std::vector<std::uint8_t> got(region.image.size());
      CUDA_CHECK(cudaMemcpy(got.data(), region.device, got.size(), cudaMemcpyDeviceToHost));
      for (std::size_t r = 0; r < region.rows; ++r) {
        const std::size_t at = region.edge + r * region.pitch;
        if (region.output) {
          std::memcpy(static_cast<std::uint8_t*>(region.host) + r * region.pitch, got.data() + at, region.row_bytes);
          std::memset(got.data() + at, 0, region.row_bytes);
          std::memset(region.image.data() + at, 0, region.row_bytes);
        }
      }
      const bool same = std::memcmp(got.data(), region.image.data(), got.size()) == 0;
      EXPECT_TRUE(same) << (region.output ? "written outside the rows of an output" : "an input or its guards changed");
    }
  }

 private:
  static constexpr std::size_t kEdgeElements = 33;  // odd

  struct Arena {
    DeviceBuffer<std::uint8_t> memory{std::size_t{640} << 20};
    std::size_t used = 0;
  };
  static Arena& arena() {
    static Arena one;
    return one;
  }

  struct Region {
    void* host;
    std::uint8_t* device;
    std::size_t rows, row_bytes, pitch, edge;
    bool output;
    std::vector<std::uint8_t> image;  // as uploaded
  };

  template <typename T>
  DeviceRowsOf<T> place(void* host, std::size_t rows, std::size_t cols, std::size_t stride, bool output) {
    if (host == nullptr) return {};
    for (Region& region : regions_)
      if (region.host == host && rows > 0) {  // in place
        region.output = region.output || output;
        CHECK(region.rows == rows && region.row_bytes == cols * sizeof(T));
        return {reinterpret_cast<T*>(region.device + region.edge), rows, cols, stride};
      }
    Region region{host, nullptr, rows, cols * sizeof(T), stride * sizeof(T), kEdgeElements * sizeof(T), output, {}};
    region.image.resize((rows == 0 ? 0 : (rows - 1) * region.pitch + region.row_bytes) + 2 * region.edge);
    static constexpr std::uint8_t kGuard[] = {0xA5, 0xA5, 0xE5, 0x7F};  // NaN as a float
    for (std::size_t i = 0; i < region.image.size(); ++i) region.image[i] = kGuard[i % 4];
    for (std::size_t r = 0; r < rows; ++r)
      std::memcpy(region.image.data() + region.edge + r * region.pitch,
                  static_cast<const std::uint8_t*>(host) + r * region.pitch, region.row_bytes);
    Arena& a = arena();
    a.used = (a.used + 255) / 256 * 256;
    region.device = a.memory.get() + a.used;
    a.used += region.image.size();
    CHECK(a.used <= a.memory.size(), "{} bytes in one call", a.used);
    CUDA_CHECK(cudaMemcpy(region.device, region.image.data(), region.image.size(), cudaMemcpyHostToDevice));
    regions_.push_back(std::move(region));
    return {reinterpret_cast<T*>(regions_.back().device + regions_.back().edge), rows, cols, stride};
  }

  std::vector<Region> regions_;
  std::vector<std::unique_ptr<std::int32_t>> scalars_;
  bool finished_ = false;
};

}  // namespace tandem::testing
