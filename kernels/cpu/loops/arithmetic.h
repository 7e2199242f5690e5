#pragma once

#include <cstddef>

namespace annulus::cpu {

// Multiplies and adds in vector registers, `rounds` times on each thread of the CPU device in parallel. This uses a
// core but no shared resources: neither memory nor caches. The registers are the processor's widest, even if the
// program was not compiled for these, because oneDNN uses them as well. Returns how many float multiplications and
// additions all threads did together: for each round, 20 x the floats in a register.
double compute_in_registers(std::size_t rounds);

// Returns the peak rate of these operations per second. Every thread computes in many short bursts for `seconds`, and
// the rates of the threads' fastest bursts are added up, so it does not matter if a thread is interrupted at times, or
// shares a core.
double peak_flops_per_second(double seconds);

}  // namespace annulus::cpu
