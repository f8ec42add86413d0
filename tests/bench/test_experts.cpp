// The kernels as the benchmark drives them, and the checker that stands before every timing.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "bench/block_pool.h"
#include "bench/expert_kernels.h"
#include "bench/pass_bytes.h"

namespace tandem::bench {
namespace {

constexpr DType kTypes[] = {DType::Q4_0, DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::IQ4_NL, DType::MXFP4};

std::vector<std::uint8_t> file_matrix(const MatrixShape& shape, std::uint64_t seed = 1) {
  std::vector<std::uint8_t> bytes(shape.file_bytes());
  BlockPool(shape.type, 0.02, seed).fill(seed, bytes.data(), bytes.size());
  return bytes;
}

std::vector<float> product(const ExpertKernel& kernel, const MatrixShape& shape, const std::vector<std::uint8_t>& file,
                           const ActivationRows& x, std::size_t width) {
  std::vector<std::uint8_t> packed(kernel.bytes(shape));
  kernel.pack(shape, file.data(), packed.data());
  std::vector<float> y(width * shape.rows, NAN);
  kernel.multiply(shape, packed.data(), x, width, y.data());
  return y;
}

TEST(ExpertKernels, AllAgreeWithTheReference) {
  const std::vector<ExpertKernel> kernels = ExpertKernel::all();
  EXPECT_EQ(kernels.front().name(), "row");
  EXPECT_GE(kernels.size(), 3U);  // row, scalar, avx2
  std::map<std::string, int> tried;
  for (const DType type : kTypes)
    for (const MatrixShape& shape : {MatrixShape{type, 64, 512}, MatrixShape{type, 83, 256}}) {  // with a short tile
      const auto file = file_matrix(shape);
      const ActivationRows x(8, shape.cols, 5);
      for (const ExpertKernel& kernel : kernels) {
        if (!kernel.supports(type)) continue;
        for (const std::size_t width : {1U, 5U, 8U}) {
          const std::vector<float> y = product(kernel, shape, file, x, width);
          EXPECT_EQ(find_wrong_row(shape, file.data(), x, width, y.data()), std::nullopt)
              << dtype_name(type) << " " << kernel.name() << " w " << width;
        }
        ++tried[kernel.name()];
      }
    }
  for (const ExpertKernel& kernel : kernels) EXPECT_EQ(tried[kernel.name()], 12) << kernel.name();
}

TEST(ExpertKernels, FloatsAreNotSupported) {
  for (const ExpertKernel& kernel : ExpertKernel::all()) EXPECT_FALSE(kernel.supports(DType::F16));
}

// Every position of a tile, every activation row, first and last row: one wrong bit there is found.
TEST(Checker, FindsOneWrongBit) {
  const MatrixShape shape{DType::Q8_0, 640, 256};
  const auto file = file_matrix(shape);
  const ActivationRows x(4, shape.cols, 5);
  const ExpertKernel row = ExpertKernel::all().front();
  const std::vector<float> right = product(row, shape, file, x, 4);
  ASSERT_EQ(find_wrong_row(shape, file.data(), x, 4, right.data()), std::nullopt);
  for (std::size_t position = 0; position < 16; ++position) {
    std::vector<float> wrong = right;  // a kernel that gets one lane of every tile wrong
    for (std::size_t n = position; n < shape.rows; n += 16) wrong[n] = std::nextafter(wrong[n], INFINITY);
    EXPECT_NE(find_wrong_row(shape, file.data(), x, 4, wrong.data()), std::nullopt) << position;
  }
  for (std::size_t r = 0; r < 4; ++r)
    for (const std::size_t n : {std::size_t{0}, shape.rows - 1}) {
      std::vector<float> wrong = right;
      wrong[r * shape.rows + n] = std::nextafter(wrong[r * shape.rows + n], INFINITY);
      const auto found = find_wrong_row(shape, file.data(), x, 4, wrong.data());
      ASSERT_TRUE(found);
      EXPECT_NE(found->find("weight row " + std::to_string(n) + ", activation row " + std::to_string(r)),
                std::string::npos)
          << *found;
    }
}

TEST(Checker, FindsAMatrixThatIsNotTheOne) {
  const MatrixShape shape{DType::Q4_0, 64, 256};
  const auto file = file_matrix(shape, 1), other = file_matrix(shape, 2);
  const ActivationRows x(1, shape.cols, 5);
  const std::vector<float> y = product(ExpertKernel::all().front(), shape, other, x, 1);
  EXPECT_NE(find_wrong_row(shape, file.data(), x, 1, y.data()), std::nullopt);
}

TEST(ActivationRows, SameSeedSameRowsAndRowsDiffer) {
  const ActivationRows a(3, 64, 1), b(3, 64, 1), c(3, 64, 2);
  EXPECT_EQ(a.q, b.q);
  EXPECT_NE(a.q, c.q);
  EXPECT_NE(std::vector<std::int8_t>(a.q.begin(), a.q.begin() + 64),
            std::vector<std::int8_t>(a.q.begin() + 64, a.q.begin() + 128));
}

TEST(PassBytes, CountsDifferentExperts) {
  //                                 row 0: 1 and 3     row 1: 3 and 4
  const std::vector<float> logits{0, 9, 1, 8, 2, /**/ 0, 1, 2, 9, 8};
  EXPECT_EQ(count_experts(ConstRows(logits.data(), 1, 5), 2), 2U);
  EXPECT_EQ(count_experts(ConstRows(logits.data(), 2, 5), 2), 3U);
  EXPECT_EQ(count_experts(ConstRows(logits.data(), 2, 5), 1), 2U);
  EXPECT_EQ(count_experts(ConstRows(logits.data(), 2, 5), 5), 5U);
}

TEST(PassBytes, Total) {
  PassBytes bytes;
  bytes.dense = 1000;
  bytes.head = 100;
  bytes.rows = 7;
  bytes.expert = {10, 20};
  EXPECT_EQ(bytes.total(1, {2, 3}), 1000U + 100 + 7 + 20 + 60);
  EXPECT_EQ(bytes.total(4, {5, 0}), 1000U + 100 + 28 + 50);
}

}  // namespace
}  // namespace tandem::bench
