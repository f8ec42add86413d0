// How fast one core packs the rows of a file into tiles and unpacks them (runtime/tile.h): cold memory in, cold memory
// out, per type and width, beside a plain copy of the same bytes by the same core. GB/s are bytes of the file per
// second.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/noise.h"
#include "placement/check.h"
#include "runtime/quant.h"
#include "runtime/tile.h"

namespace tandem::bench {
namespace {

constexpr DType kTypes[] = {DType::Q4_0,   DType::Q4_1,  DType::Q5_0,    DType::Q5_1,   DType::Q8_0,  DType::Q2_0,
                            DType::Q2_K,   DType::Q3_K,  DType::Q4_K,    DType::Q5_K,   DType::Q6_K,  DType::IQ4_NL,
                            DType::IQ4_XS, DType::MXFP4, DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S, DType::IQ3_XXS,
                            DType::IQ3_S,  DType::IQ1_S, DType::IQ1_M};

struct Buffers {
  HugeBuffer file, tiles;
  explicit Buffers(std::size_t bytes) : file(bytes), tiles(bytes) {
    Noise noise(1);
    for (std::size_t at = 0; at + 64 <= bytes; at += 64) std::memcpy(file.data() + at, noise.next().data(), 64);
    std::memset(tiles.data(), 1, bytes);
  }
};

void check_result(DType type, std::size_t cols, const Buffers& buffers) {
  const std::size_t bytes = tile_bytes(type, cols);
  std::vector<std::uint8_t> back(bytes);
  pack_tile(type, buffers.file.data(), kTileRows, cols, buffers.tiles.data());
  unpack_tile(type, buffers.tiles.data(), kTileRows, cols, back.data());
  CHECK(std::memcmp(back.data(), buffers.file.data(), bytes) == 0, "{} x {}", dtype_name(type), cols);
}

double thread_seconds() {
  timespec now{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Times body(byte offset) for units of `bytes` bytes in turn.
template <typename Body>
Timing time_units(const Buffers& buffers, std::size_t bytes, Body&& body) {
  const std::size_t count = buffers.file.size() / bytes;
  Cursor cursor(count);
  return measure(SamplePlan{}, 1, count, [&](std::size_t units) {
    const std::size_t first = cursor.take(units);
    const double begin = thread_seconds();
    for (std::size_t unit = 0; unit < units; ++unit) body(cursor.at(first, unit) * bytes);
    return thread_seconds() - begin;
  });
}

// One line of the table. `copy` is the speed of a copy, in GB/s.
void time_type(DType type, std::size_t cols, const Buffers& buffers, double copy, CsvFile& csv) {
  check_result(type, cols, buffers);
  const std::uint8_t* file = buffers.file.data();
  std::uint8_t* tiles = buffers.tiles.data();
  const std::size_t bytes = tile_bytes(type, cols);
  const auto gigabytes = 1e-9 * static_cast<double>(bytes);
  const Timing pack =
      time_units(buffers, bytes, [&](std::size_t at) { pack_tile(type, file + at, kTileRows, cols, tiles + at); });
  const Timing unpack =
      time_units(buffers, bytes, [&](std::size_t at) { unpack_tile(type, file + at, kTileRows, cols, tiles + at); });
  fmt::print("{:8} {:6} {:10.2f} {:10.2f} {:12.2f} {:9.0f}%\n", dtype_name(type), cols, pack.rate(gigabytes),
             pack.slow_rate(gigabytes), unpack.rate(gigabytes), 100 * pack.rate(gigabytes) / copy);
  csv.row({std::string(dtype_name(type)), std::to_string(cols), fmt::format("{:.3f}", pack.rate(gigabytes)),
           fmt::format("{:.3f}", pack.slow_rate(gigabytes)), fmt::format("{:.3f}", unpack.rate(gigabytes)),
           fmt::format("{:.3f}", copy)});
}

int run(const std::string& csv_path, const std::string& machine_name) {
  const MachineInfo machine = machine_info(machine_name);
  CsvFile csv(csv_path, machine, {"type", "cols", "pack_gbs", "pack_p95_gbs", "unpack_gbs", "copy_gbs"});
  const Buffers buffers(cold_bytes(machine) / 2);
  constexpr std::size_t kCopyBytes = 32768;
  const Timing copied = time_units(buffers, kCopyBytes, [&](std::size_t at) {
    std::memcpy(buffers.tiles.data() + at, buffers.file.data() + at, kCopyBytes);
  });
  const double copy = copied.rate(1e-9 * kCopyBytes);
  fmt::print("one core of {}, copy {:.2f} GB/s\n{:8} {:>6} {:>10} {:>10} {:>12} {:>10}\n", machine.cpu, copy, "type",
             "cols", "pack GB/s", "p95 GB/s", "unpack GB/s", "pack/copy");
  for (DType type : kTypes) {
    for (std::size_t cols : {std::size_t{640}, std::size_t{2560}}) {
      if (cols % dtype_info(type).block_elems == 0) time_type(type, cols, buffers, copy, csv);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  return tandem::bench::guarded_main("bench_pack", [&] {
    CLI::App app("Speed of packing and unpacking tiles, one core");
    std::string csv, machine;
    app.add_option("--csv", csv, "append the figures to this file");
    app.add_option("--machine", machine, "name of the machine in the CSV lines");
    CLI11_PARSE(app, argc, argv);
    return tandem::bench::run(csv, machine);
  });
}
