#include "kernels/cpu/arithmetic.h"

#include <array>

#include "kernels/cpu/vectors.h"

namespace annulus::cpu {
namespace {

// Enough independent sums to hide the latency of an addition, which fit into 16 registers with the factor and the term.
constexpr std::size_t kSums = 10;
constexpr std::size_t kFlopsOfRound = kSums * kVector * 2;

}  // namespace

double compute_in_registers(std::size_t rounds) {
  double flops = 0;
#pragma omp parallel reduction(+ : flops)
  {
    using Floats = Lanes<kVector>::Floats;
    std::array<Floats, kSums> sums{};
    asm volatile("" : "+m"(sums));  // or the compiler would compute equal sums once, and know their results
    const Floats factor = Floats{} + 0.5f, term = Floats{} + 1;  // sums converge to 2
    for (std::size_t round = 0; round < rounds; ++round)
      for (Floats& sum : sums) sum = sum * factor + term;
    asm volatile("" : : "m"(sums));  // or the compiler would remove the unused result
    flops = static_cast<double>(rounds * kFlopsOfRound);
  }
  return flops;
}

}  // namespace annulus::cpu
