#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace annulus {

// A piece of memory and the moments, both included, between which its content counts. Without bytes it needs no place.
struct Lifetime {
  std::size_t bytes, begin, end;

  bool meets(const Lifetime& other) const { return begin <= other.end && other.begin <= end; }
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // of each piece, multiples of kAlignment
  std::size_t bytes = 0;             // of the arena that holds all of them

  static constexpr std::size_t kAlignment = 256;  // for any use of any device
};

// Places for all pieces in one arena, such that no two whose lifetimes meet share a byte. The largest is placed first,
// each where the gap between those that live with it is the tightest (Pisarchyk and Lee, "Efficient memory management
// for deep neural net inference", 2020, section 5.2). The same pieces get the same places.
MemoryPlan plan_memory(std::span<const Lifetime> pieces);

}  // namespace annulus
