#include "gpu/kernels/hc_read.h"

namespace tandem {

// Of hc_down.cu and hc_up.cu.
bool can_fuse_hc_down(DType type, std::size_t wide, std::size_t rank);
bool can_fuse_hc_up(DType type, std::size_t rank);
void load_hc_down_kernels();
void load_hc_up_kernels();

bool can_fuse_hc_read(DType down, DType up, std::size_t rows, std::size_t streams, std::size_t d, std::size_t rank) {
  constexpr std::size_t kMaxStream = 32 * 256;  // columns: a warp per segment
  return rows > 0 && rows <= kHcRows && streams == kHcStreams && d % 32 == 0 && d <= kMaxStream &&
         can_fuse_hc_down(down, streams * d, rank) && can_fuse_hc_up(up, rank);
}

void load_hc_kernels() {
  load_hc_down_kernels();
  load_hc_up_kernels();
}

}  // namespace tandem
