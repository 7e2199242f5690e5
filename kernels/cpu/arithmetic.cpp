#include "kernels/cpu/arithmetic.h"

#include <algorithm>
#include <array>

#include "kernels/base/clock.h"
#include "kernels/cpu/vectors.h"

namespace annulus::cpu {
namespace {

// Enough independent sums to hide the latency of an addition, which fit into 16 registers with the factor and the term.
constexpr std::size_t kSums = 10;
constexpr std::size_t kFlopsOfRound = kSums * kChannelBlock * 2;

// On the calling thread. Returns the number of operations.
double compute_on_thread(std::size_t rounds) {
  using Floats = Lanes<kChannelBlock>::Floats;
  std::array<Floats, kSums> sums{};
  asm volatile("" : "+m"(sums));  // or the compiler would compute equal sums once, and know their results
  const Floats factor = Floats{} + 0.5f, term = Floats{} + 1;  // sums converge to 2
  for (std::size_t round = 0; round < rounds; ++round)
    for (Floats& sum : sums) sum = sum * factor + term;
  asm volatile("" : : "m"(sums));  // or the compiler would remove the unused result
  return static_cast<double>(rounds * kFlopsOfRound);
}

}  // namespace

double compute_in_registers(std::size_t rounds) {
  double flops = 0;
#pragma omp parallel reduction(+ : flops)
  flops = compute_on_thread(rounds);
  return flops;
}

double peak_flops_per_second(double seconds) {
  constexpr std::size_t kRounds = 20'000;  // some hundredths of a millisecond, much shorter than a thread's time slice
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  {
    double fastest = 0;
    for (double now = now_seconds(), end = now + seconds; now < end;) {
      const double begin = now, flops = compute_on_thread(kRounds);
      now = now_seconds();
      fastest = std::max(fastest, flops / (now - begin));
    }
    sum = fastest;
  }
  return sum;
}

}  // namespace annulus::cpu
