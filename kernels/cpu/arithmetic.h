#pragma once

#include <cstddef>

namespace annulus::cpu {

// Multiplies and adds in vector registers, `rounds` times on every thread of the CPU device at once: work that takes a
// core's time and nothing that cores share, neither memory nor its caches. Returns how many multiplications and
// additions of floats these were, on all threads together.
double compute_in_registers(std::size_t rounds);

}  // namespace annulus::cpu
