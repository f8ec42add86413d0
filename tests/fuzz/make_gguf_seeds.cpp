// Writes the seed corpus: make_gguf_seeds tests/fuzz/corpus_gguf
#include <cstdio>
#include <filesystem>

#include "tests/fuzz/gguf_seeds.h"
#include "tests/gguf_builder.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: make_gguf_seeds FOLDER\n", stderr);
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  for (const tandem::testing::GgufSeed& seed : tandem::testing::gguf_seeds()) {
    tandem::testing::write_file(folder / seed.name, seed.bytes);
  }
  return 0;
}
