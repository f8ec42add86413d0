// The token of every row on the card, bit for bit what the host's sampler chooses (runtime/sampler.h) where nothing but
// the temperature is set: the arg max, or that of logit / T + Gumbel noise (R8), which is made of exact functions.
//
// When: once per pass. How: two launches; the vocabulary of a row is cut into strips, and a last block takes the best
// of them. Ties go to the lower token. Measured: docs/performance.md.
#pragma once

#include "gpu/kernels/device_rows.h"

namespace tandem::gpu {

// Bytes of work memory for `rows` rows.
std::size_t sample_bytes(std::size_t rows);

// token[r] = the arg max of row r. *bad is lowered to the first row that holds a NaN or +infinity, or nothing above
// -infinity (atomicMin: the caller sets it to INT32_MAX before). work: sample_bytes(logits.rows), aligned to 8.
void arg_max(ConstDeviceRows logits, std::int32_t* token, std::int32_t* bad, void* work, DeviceStream stream);

// What changes from round to round, in the card's memory. REQUIRES temperature > 0.
struct SampleNumbers {
  std::uint64_t seed;
  float temperature;
  std::int32_t position;
};
// The same over logit / temperature + gumbel_noise(seed, position + r, token).
void sample(ConstDeviceRows logits, const SampleNumbers* numbers, std::int32_t* token, std::int32_t* bad, void* work,
            DeviceStream stream);

}  // namespace tandem::gpu
