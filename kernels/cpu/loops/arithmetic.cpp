#include "kernels/cpu/loops/arithmetic.h"

#include <algorithm>

#include "kernels/base/clock.h"
#include "kernels/cpu/loops/vectors.h"

namespace annulus::cpu {
namespace {

// Enough independent sums to hide an addition's latency, which fit into 16 registers with the factor and the term.
constexpr std::size_t kSums = 10;

// Computes on the calling thread. Returns how many operations that took. Inlined, or it would be compiled for this
// program's processor.
template <std::size_t size>
[[gnu::always_inline]] inline double compute(std::size_t rounds) {
  using Floats = typename Lanes<size>::Floats;
  Floats sums[kSums]{};
  asm volatile("" : "+m"(sums));  // or the compiler would compute equal sums once, and know their results
  const Floats factor = Floats{} + 0.5f, term = Floats{} + 1;  // sums converge to 2
  for (std::size_t round = 0; round < rounds; ++round)
    for (Floats& sum : sums) sum = sum * factor + term;
  asm volatile("" : : "m"(sums));  // or the compiler would remove the unused result
  return static_cast<double>(rounds * kSums * size * 2);
}

double compute_avx2(std::size_t rounds) {
  return compute<8>(rounds);
}

[[gnu::target("avx512f")]] double compute_avx512(std::size_t rounds) {
  return compute<16>(rounds);
}

double compute_on_thread(std::size_t rounds) {
  static const auto widest = __builtin_cpu_supports("avx512f") ? compute_avx512 : compute_avx2;
  return widest(rounds);
}

}  // namespace

double compute_in_registers(std::size_t rounds) {
  double flops = 0;
#pragma omp parallel reduction(+ : flops)
  flops = compute_on_thread(rounds);
  return flops;
}

PeakRate peak_flops_per_second(double seconds) {
  constexpr std::size_t kRounds = 20'000;  // some hundredths of a millisecond, much shorter than a thread's time slice
  double sum = 0, fastest = 0;
#pragma omp parallel reduction(+ : sum) reduction(max : fastest)
  {
    double own = 0;
    for (double now = now_seconds(), end = now + seconds; now < end;) {
      const double begin = now, flops = compute_on_thread(kRounds);
      now = now_seconds();
      own = std::max(own, flops / (now - begin));
    }
    sum = fastest = own;
  }
  return {sum, fastest};
}

}  // namespace annulus::cpu
