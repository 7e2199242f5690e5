#include "kernels/cpu/arithmetic.h"

#include <array>

#include "kernels/cpu/vectors.h"

namespace annulus::cpu {
namespace {

// As many sums at a time as hide the latency of an addition, and fit into 16 registers with the factor and the term.
constexpr std::size_t kSums = 10;
constexpr std::size_t kFlopsOfRound = kSums * kVector * 2;

}  // namespace

double compute_in_registers(std::size_t rounds) {
  double flops = 0;
#pragma omp parallel reduction(+ : flops)
  {
    using Floats = Lanes<kVector>::Floats;
    std::array<Floats, kSums> sums{};
    asm volatile("" : "+m"(sums));  // or the compiler computes equal ones once, and knows what becomes of them
    const Floats factor = Floats{} + 0.5f, term = Floats{} + 1;  // sums go to 2, and stay there
    for (std::size_t round = 0; round < rounds; ++round)
      for (Floats& sum : sums) sum = sum * factor + term;
    asm volatile("" : : "m"(sums));  // or it leaves out what nobody looks at
    flops = static_cast<double>(rounds * kFlopsOfRound);
  }
  return flops;
}

}  // namespace annulus::cpu
