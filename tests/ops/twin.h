// The twin test: a machine gives the bits of ReferenceOps, for a batch and for every row of it run alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/machines.h"
#include "tests/ops/guarded.h"

namespace tandem::testing {

// The outputs of one run of an operation.
class Results {
 public:
  template <typename T>
  Guarded<T>& add(std::size_t rows, std::size_t cols, std::size_t gap = 0) {
    auto array = std::make_unique<Guarded<T>>(rows, cols, gap);
    Guarded<T>& added = *array;
    arrays_.push_back(std::move(array));
    return added;
  }
  // Float rows with a gap between them.
  Floats& floats(std::size_t rows, std::size_t cols) { return add<float>(rows, cols, 5); }
  // The same, starting as a copy: the operand of an operation in place.
  Floats& copy(ConstRows source);
  QuantArrays quant(std::size_t rows, std::size_t cols);
  const std::vector<std::unique_ptr<GuardedArray>>& arrays() const { return arrays_; }

 private:
  std::vector<std::unique_ptr<GuardedArray>> arrays_;
};

struct TwinCase {
  std::string what;  // shape and values, for the message
  std::size_t rows = 1;
  std::vector<const GuardedArray*> inputs;
  // Runs the operation on rows first .. first + count - 1 of the inputs. Every array that it adds to the results has
  // a multiple of `count` rows.
  std::function<void(Ops& ops, std::size_t first, std::size_t count, Results& results)> run;
  bool rows_alone = true;  // false: a row needs what earlier rows left behind, so it cannot run alone
  bool nan_allowed = false;
};

// Every array of `a` equals that of `b`, byte for byte; the message names array, row and element.
::testing::AssertionResult same_bits(const Results& a, const Results& b);

// Runs the case on ReferenceOps and on `machine`; records a failure when a bit differs, a guard was overwritten, an
// input changed or the result holds NaN (unless allowed). Then each row alone against its part of the batch.
void expect_twin(Ops& machine, const TwinCase& c);

}  // namespace tandem::testing
