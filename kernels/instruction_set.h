#pragma once

#include <optional>
#include <string_view>

namespace annulus {

// The instruction sets between which results differ, narrowest first. Up to AVX-512, float32 kernels of oneDNN round
// differently, and prefer other memory layouts. AMX multiplies bf16 on tile registers, which Muon uses. Other
// extensions, such as AVX512-BF16, change nothing.
enum class InstructionSet { sse41, avx, avx2, avx512, amx };

std::string_view to_string(InstructionSet set);
std::optional<InstructionSet> parse_instruction_set(std::string_view text);  // as to_string() writes it

// Returns the widest set that this processor has, and that ONEDNN_MAX_CPU_ISA allows. Does not call oneDNN, which
// remembers the set from its first use on.
InstructionSet widest_instruction_set();

// Lets oneDNN compute with no wider set in this process. Throws Error if oneDNN was already used with a wider set.
void limit_instruction_set(InstructionSet most);

// Returns the set that oneDNN computes with in this process.
InstructionSet used_instruction_set();

}  // namespace annulus
