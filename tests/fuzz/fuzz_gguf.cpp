// libFuzzer target for the GGUF directory, the merging of shards and the shard names.
//   cmake --preset fuzz && cmake --build --preset fuzz
//   mkdir -p build/fuzz/corpus && build/fuzz/bin/fuzz_gguf -max_total_time=60 build/fuzz/corpus tests/fuzz/corpus_gguf
#include "tests/fuzz/gguf_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)tandem::testing::try_gguf({data, size});
  return 0;
}
