// The token of every row on the card, bit for bit what the host's sampler chooses (runtime/sampler.h) where nothing but
// the temperature is set: the arg max, or that of logit / T + Gumbel noise (R8), which is made of exact functions.
//
// When: once per pass; the sum for a draft. How: two launches each; the vocabulary of a row is cut into strips, and a
// last block takes the best of them or adds up. Ties go to the lower token. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"
#include "runtime/chosen.h"

namespace tandem::gpu {

// Bytes of work memory for `rows` rows, for each of these.
std::size_t sample_bytes(std::size_t rows);

// Token and logit of chosen[r] = the arg max of row r; the token is ids[i] where ids are given (ascending). *bad is
// lowered to the first row that holds a NaN or +infinity, or nothing above -infinity (atomicMin: the caller sets it to
// INT32_MAX before). work: sample_bytes(logits.rows), aligned to 8.
void arg_max(ConstDeviceRows logits, const std::int32_t* ids, Chosen* chosen, std::int32_t* bad, void* work,
             DeviceStream stream);

// What changes from round to round, in the card's memory. REQUIRES temperature > 0.
struct SampleNumbers {
  std::uint64_t seed;
  float temperature;
  std::int32_t position;
};
// The same over logit / temperature + gumbel_noise(seed, position + r, token).
void sample(ConstDeviceRows logits, const std::int32_t* ids, const SampleNumbers* numbers, Chosen* chosen,
            std::int32_t* bad, void* work, DeviceStream stream);

// top and sum of chosen[r] (Ops::softmax_sum) at numbers->temperature, which may be 0 here, by two launches. *arrived
// is 0, and is again afterwards. REQUIRES at most kMaxSoftmaxLogits in a row; where one is NaN or +infinity they are
// without meaning.
inline constexpr std::size_t kMaxSoftmaxLogits = std::size_t{1} << 19;
void softmax_sum(ConstDeviceRows logits, const SampleNumbers* numbers, Chosen* chosen, std::uint32_t* arrived,
                 void* work, DeviceStream stream);

}  // namespace tandem::gpu
