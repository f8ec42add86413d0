// The tiny golden model (tests/golden/tiny_golden.npz: weights and float64 traces of an outside reference) as a float32
// GGUF, and the comparison rule of the golden tests.
#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>

#include "runtime/tensor.h"
#include "tests/gguf_builder.h"
#include "tests/npy.h"

namespace tandem::testing {

const std::map<std::string, NpyArray>& tiny_golden();
GgufBuilder tiny_golden_model();  // F32 throughout, MTP block bundled, no tokenizer

// Per element: |found - expected| <= relative * max(|expected|, rms of the expected row). Reports the worst element.
::testing::AssertionResult rows_close(ConstRows found, const NpyArray& expected, std::size_t first_row, double relative,
                                      const std::string& what);

}  // namespace tandem::testing
