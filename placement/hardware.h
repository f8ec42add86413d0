// What a machine can do, measured by `tandem doctor` or written down from data sheets (configs/hardware/*.yaml).
// docs/policies.md lists the keys of the file; a figure that a file leaves out has the value given here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

struct Hardware {
  std::string name;
  std::string source;  // "measured 2026-11-29 by tandem doctor", or where each figure comes from
  // How far its rates and fixed costs may be off, either way, as a fraction; 0 for a machine that was measured.
  double spread = 0;
  struct Cpu {
    std::string model;
    int performance_cores = 0, efficiency_cores = 0;  // physical
    int threads = 0;                                  // logical processors that the process may use
    int l3_groups = 0, numa_nodes = 0;
    std::string isa;  // "avx2", "avxvnni", "avx512"
    // Fraction of the read bandwidth that expert kernels reach at 1 row, and the gain in time per further row.
    double expert_efficiency = 0.85;
    double row_cost = 0.15;  // seconds of a row more, as a fraction of the first row's
    // GB/s that one core reads of experts of a block type where its arithmetic is the limit; a type that is not here is
    // limited by memory alone.
    std::map<std::string, double> expert_core_gbps;
    double start_us = 15;  // to hand out a list of experts and to collect it, whatever its length
  } cpu;
  struct Ram {
    std::int64_t total = 0, available = 0;
    std::map<int, double> read_gbps;       // by worker count, 1e9 bytes a second
    std::optional<std::int64_t> lockable;  // bytes that may be locked; empty: no limit
    bool huge_pages = false;               // transparent huge pages can be asked for
  } ram;
  struct Disk {
    double random_read_mbps = 0;  // 4 KiB reads, many at once, 1e6 bytes a second; 0: not known
    double large_read_gbps = 0;   // 1e9 bytes a second; 0: not known
  } disk;
  struct Gpu {
    std::string model;
    std::string arch;  // "sm_86"
    std::int64_t vram_total = 0, vram_free = 0;
    double copy_gbps = 0;  // device memory: bytes read, measured
    double pcie_to_card_gbps = 0, pcie_from_card_gbps = 0;
    // Measured on the H200 machine (configs/hardware/h200-16core.yaml).
    double handoff_us = 11;   // a meeting with the crew beside the crew's work: rows there, results back
    double kernel_us = 3.6;   // fixed cost of one kernel of a chain in which each waits for the one before
    double row_us = 0.25;     // the same, of each row more
    double fetch_us = 12;     // what a copy of an expert costs the kernels beside it (placement/fetch_ahead.h)
    double efficiency = 0.8;  // of copy_gbps that the product kernels reach
    // GB/s of expert weights by block type where the card's arithmetic is the limit; others reach the efficiency.
    std::map<std::string, double> expert_gbps;
    double int8_tops = 0;  // dense int8 tensor operations, 1e12 a second; 0: not known
    std::string used_by;   // the programs that hold the rest, for messages; not in files
  };
  std::optional<Gpu> gpu;

  // GB/s with `workers` of the crew: measured points, straight lines between, in proportion before the first, flat
  // after the last. 0 when no point is known. REQUIRES workers >= 1.
  double read_gbps(int workers) const;
  // The same machine with all rates times `factor` and all fixed costs divided by it. REQUIRES factor > 0.
  Hardware faster(double factor) const;
};

// Throws InputError with file, line and key. A file has to give name, source, cpu.performance_cores, ram.total and one
// point of ram.read_gbps; in `gpu` also model, arch, vram_total, copy_gbps and pcie_to_card_gbps.
Hardware load_hardware(const std::filesystem::path& path);
// The text of the file; loading it gives equal values.
std::string hardware_yaml(const Hardware& hardware);
void save_hardware(const Hardware& hardware, const std::filesystem::path& path);

}  // namespace tandem
