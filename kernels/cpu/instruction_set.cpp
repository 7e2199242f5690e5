#include "kernels/instruction_set.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <dnnl.hpp>
#include <string>

#include "kernels/base/error.h"

namespace annulus {
namespace {

struct Named {
  InstructionSet set;
  std::string_view name, variable;  // `variable`: how the names in ONEDNN_MAX_CPU_ISA begin
  dnnl::cpu_isa isa;
};

constexpr std::array<Named, 5> kSets{{
    {InstructionSet::sse41, "sse4.1", "SSE41", dnnl::cpu_isa::sse41},
    {InstructionSet::avx, "avx", "AVX", dnnl::cpu_isa::avx},
    {InstructionSet::avx2, "avx2", "AVX2", dnnl::cpu_isa::avx2},
    {InstructionSet::avx512, "avx512", "AVX512", dnnl::cpu_isa::avx512_core_bf16},
    {InstructionSet::amx, "amx", "AVX512_CORE_AMX", dnnl::cpu_isa::all},
}};

const Named& named(InstructionSet set) {
  return kSets.at(static_cast<std::size_t>(set));
}

// Asks the system for the tile registers, which a process must before it uses them.
bool has_tiles() {
  constexpr int kRequestState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") &&
         syscall(SYS_arch_prctl, kRequestState, kTileData) == 0;
}

InstructionSet of_this_processor() {
  if (has_tiles()) return InstructionSet::amx;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    return InstructionSet::avx512;
  if (__builtin_cpu_supports("avx2")) return InstructionSet::avx2;
  return __builtin_cpu_supports("avx") ? InstructionSet::avx : InstructionSet::sse41;
}

// The last name that fits is the longest.
InstructionSet of_environment() {
  const char* variable = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (variable == nullptr) variable = std::getenv("DNNL_MAX_CPU_ISA");  // its name until oneDNN 2.3
  std::string text = variable == nullptr ? "" : variable;
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  InstructionSet set = InstructionSet::amx;  // other names, such as ALL, allow every set
  for (const Named& each : kSets)
    if (text.starts_with(each.variable)) set = each.set;
  return set;
}

}  // namespace

std::string_view to_string(InstructionSet set) {
  return named(set).name;
}

std::optional<InstructionSet> parse_instruction_set(std::string_view text) {
  const auto* const found = std::ranges::find(kSets, text, &Named::name);
  return found == kSets.end() ? std::nullopt : std::make_optional(found->set);
}

InstructionSet widest_instruction_set() {
  return std::min(of_this_processor(), of_environment());
}

void limit_instruction_set(InstructionSet most) {
  if (most >= widest_instruction_set()) return;
  if (dnnl::set_max_cpu_isa(named(most).isa) != dnnl::status::success && used_instruction_set() > most)
    fail("oneDNN cannot be limited to {}: it was used before", to_string(most));
}

InstructionSet used_instruction_set() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return InstructionSet::sse41;
    case dnnl::cpu_isa::avx:
      return InstructionSet::avx;
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx2_vnni:
      return InstructionSet::avx2;
    case dnnl::cpu_isa::avx512_core_amx:
      return of_this_processor();  // the system may refuse the tile registers
    default:
      return InstructionSet::avx512;
  }
}

}  // namespace annulus
