#pragma once

#include <memory>

#include "kernels/cpu/orthogonalize.h"

namespace annulus::cpu {

// Orthogonalizes matrices by products on tile registers (AMX): factors are rounded to bf16, sums are float32. REQUIRES:
// used_instruction_set() is amx.
std::unique_ptr<Orthogonalizer> make_tile_orthogonalizer(const Muon& rule);

}  // namespace annulus::cpu
