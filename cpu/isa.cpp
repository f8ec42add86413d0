#include "cpu/isa.h"

#include <cpuid.h>

#include "placement/check.h"

namespace tandem {

namespace {
struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Registers cpuid(unsigned leaf, unsigned sub_leaf) {
  Registers r;
  __get_cpuid_count(leaf, sub_leaf, &r.eax, &r.ebx, &r.ecx, &r.edx);  // zeros when there is no such leaf
  return r;
}
}  // namespace

bool cpu_has(std::string_view feature) {
  __builtin_cpu_init();
  if (feature == "avx2") return __builtin_cpu_supports("avx2") != 0;
  if (feature == "fma") return __builtin_cpu_supports("fma") != 0;
  if (feature == "avx512f") return __builtin_cpu_supports("avx512f") != 0;
  if (feature == "avx512bw") return __builtin_cpu_supports("avx512bw") != 0;
  if (feature == "avx512vl") return __builtin_cpu_supports("avx512vl") != 0;
  if (feature == "avx512dq") return __builtin_cpu_supports("avx512dq") != 0;
  if (feature == "avx512vnni") return __builtin_cpu_supports("avx512vnni") != 0;
  if (feature == "avx512vbmi") return __builtin_cpu_supports("avx512vbmi") != 0;
  if (feature == "gfni") return (cpuid(7, 0).ecx & (1U << 8)) != 0;  // on registers that others have asked for
  // clang 14 has no names for these two. Both work on AVX registers, which "avx" and "avx2" have asked the system for.
  if (feature == "f16c") return __builtin_cpu_supports("avx") != 0 && (cpuid(1, 0).ecx & (1U << 29)) != 0;
  CHECK(feature == "avxvnni", "{}", feature);
  return __builtin_cpu_supports("avx2") != 0 && (cpuid(7, 1).eax & (1U << 4)) != 0;
}

std::string missing_cpu_features() {
  std::string missing;
  const auto need = [&missing](std::string_view feature, std::string_view name) {
    if (cpu_has(feature)) return;
    if (!missing.empty()) missing += ", ";
    missing += name;
  };
  need("avx2", "AVX2");
  need("fma", "FMA");
  need("f16c", "F16C");
  return missing;
}

}  // namespace tandem
