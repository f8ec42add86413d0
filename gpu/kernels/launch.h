// Whether kernels ask to be brought onto the card early (gpu/kernels/launch.cuh). Plain C++.
#pragma once

namespace tandem {

// For all launches of this process from now on; off at first. REQUIRES a card of compute capability 9.0 or above to be
// on.
void set_early_starts(bool on);
bool early_starts();

}  // namespace tandem
