#pragma once

#include <cstddef>

namespace annulus::cpu {

// Multiplies and adds in vector registers, `rounds` times on each thread of the CPU device in parallel. This uses a
// core but no shared resources: neither memory nor caches. Returns the number of float multiplications and additions on
// all threads together.
double compute_in_registers(std::size_t rounds);

}  // namespace annulus::cpu
