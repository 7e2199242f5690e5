#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace annulus {

// A piece of memory and its live range: its content must be kept from moment `begin` through moment `end`. A piece of 0
// bytes takes no memory.
struct Lifetime {
  std::size_t bytes, begin, end;

  bool meets(const Lifetime& other) const { return begin <= other.end && other.begin <= end; }
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // of each piece, multiples of kAlignment
  std::size_t bytes = 0;             // of the arena that holds all of them

  static constexpr std::size_t kAlignment = 256;  // sufficient for any use on any device
};

// Places all pieces in one arena, such that no two pieces with overlapping lifetimes share a byte. Pieces are placed in
// order of decreasing size, each in the smallest sufficient gap between those with overlapping lifetimes (Pisarchyk and
// Lee, "Efficient memory management for deep neural net inference", 2020, section 5.2). Deterministic.
MemoryPlan plan_memory(std::span<const Lifetime> pieces);

}  // namespace annulus
