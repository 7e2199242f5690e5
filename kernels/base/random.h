#pragma once

#include <cstdint>

namespace annulus {

// SplitMix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): a
// bijection on 64-bit words whose outputs look random. All randomness in the program depends on keys (seed, epoch,
// sample, ...), never on the rank or on earlier draws, so a run can resume on any number of ranks.
constexpr std::uint64_t mix(std::uint64_t key) {
  key += 0x9e3779b97f4a7c15ULL;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
  return key ^ (key >> 31);
}

// Makes a single word from several keys; their order matters.
template <class... Keys>
constexpr std::uint64_t mix(std::uint64_t first, std::uint64_t second, Keys... rest) {
  return mix(mix(first) ^ second, rest...);
}

}  // namespace annulus
