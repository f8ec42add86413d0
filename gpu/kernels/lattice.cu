#include "gpu/kernels/lattice.h"

#include <cuda_runtime_api.h>

#include <iterator>
#include <mutex>
#include <vector>

#include "gpu/cuda_check.h"
#include "placement/check.h"
#include "runtime/iq_grids.h"

namespace tandem {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::size_t kTableWords = 256 + 512 + 1024 + 256 + 512 + 2048;
constexpr std::size_t kFirst[] = {
    0, 256, 256 + 512, 256 + 512 + 1024, 256 + 512 + 1024 + 256, 256 + 512 + 1024 + 256 + 512};

std::mutex mutex;
std::uint32_t* device_tables[kMaxDevices];

int current_device() {
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CHECK(device < kMaxDevices, "device {}", device);
  return device;
}

// Appends the digits of a grid of eight columns; `values` are those of the digits 0, 1, ...
template <std::size_t count>
void add_digits(const IqGrid<std::uint64_t, count>& grid, const std::vector<int>& values,
                std::vector<std::uint32_t>& out) {
  for (const std::uint64_t entry : grid.entry) {
    std::uint32_t selectors = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const auto value = static_cast<std::int8_t>(entry >> (8 * i));
      std::uint32_t digit = 0;
      while (digit < values.size() && values[digit] != value) ++digit;
      CHECK(digit < values.size(), "an entry of a lattice has the value {}", int{value});
      selectors |= digit << (4 * i);
    }
    out.push_back(selectors);
  }
}

}  // namespace

void load_lattice_tables() {
  const std::lock_guard lock(mutex);
  std::uint32_t*& tables = device_tables[current_device()];
  if (tables != nullptr) return;
  std::vector<std::uint32_t> words;
  add_digits(kIq2XxsGrid, {8, 25, 43}, words);
  add_digits(kIq2XsGrid, {8, 25, 43}, words);
  add_digits(kIq2SGrid, {8, 25, 43}, words);
  words.insert(words.end(), std::begin(kIq3XxsGrid.entry), std::end(kIq3XxsGrid.entry));
  words.insert(words.end(), std::begin(kIq3SGrid.entry), std::end(kIq3SGrid.entry));
  add_digits(kIq1SGrid, {-1, 0, 1}, words);
  CHECK(words.size() == kTableWords, "{} words", words.size());
  CUDA_CHECK(cudaMalloc(&tables, words.size() * sizeof(std::uint32_t)));
  CUDA_CHECK(cudaMemcpy(tables, words.data(), words.size() * sizeof(std::uint32_t), cudaMemcpyHostToDevice));
}

const std::uint32_t* device_lattice_table(DType type) {
  const auto table = [](std::size_t index) {
    const std::uint32_t* tables = device_tables[current_device()];
    CHECK(tables != nullptr, "load_lattice_tables was not called");
    return tables + kFirst[index];
  };
  switch (type) {
    case DType::IQ2_XXS:
      return table(0);
    case DType::IQ2_XS:
      return table(1);
    case DType::IQ2_S:
      return table(2);
    case DType::IQ3_XXS:
      return table(3);
    case DType::IQ3_S:
      return table(4);
    case DType::IQ1_S:
    case DType::IQ1_M:
      return table(5);
    default:
      return nullptr;
  }
}

}  // namespace tandem
