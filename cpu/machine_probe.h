// The processor's part of `tandem doctor`.
#pragma once

#include "runtime/machine_probes.h"

namespace tandem {

// Everything but the GPU. The topology is read once, here: call it before threads are pinned.
MachineProbes cpu_machine_probes();

}  // namespace tandem
