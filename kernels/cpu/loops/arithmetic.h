#pragma once

#include <cstddef>

namespace annulus::cpu {

// Multiplies and adds in vector registers, `rounds` times on each thread of the CPU device in parallel. This uses a
// core but no shared resources: neither memory nor caches. The registers are the processor's widest, even if the
// program was not compiled for these, because oneDNN uses them as well. Returns how many float multiplications and
// additions all threads did together: for each round, 20 x the floats in a register.
double compute_in_registers(std::size_t rounds);

// Operations per second.
struct PeakRate {
  double sum = 0;      // all threads'
  double fastest = 0;  // the fastest thread's
};

// Measures the peak rates. Every thread computes in many short bursts for `seconds`, and the fastest burst of each
// counts, so it does not matter if a thread is interrupted at times. If there are more threads than processors, the
// sum is more than the processors can do together.
PeakRate peak_flops_per_second(double seconds);

}  // namespace annulus::cpu
