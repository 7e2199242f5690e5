#pragma once

#include <cstddef>

namespace annulus::cpu {

// Multiplies and adds in vector registers, `rounds` times on each thread of the CPU device in parallel. This uses a
// core but no shared resources: neither memory nor caches. Returns the number of float multiplications and additions on
// all threads together.
double compute_in_registers(std::size_t rounds);

// Returns the number of these operations per second: each thread's in the fastest of its many short bursts of this
// total duration, summed over the threads. So it does not matter if a thread is interrupted, or shares a core with
// another one.
double peak_flops_per_second(double seconds);

}  // namespace annulus::cpu
