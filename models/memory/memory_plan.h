#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace annulus {

struct LiveRange {
  std::size_t begin, end;  // moments, both included

  bool meets(const LiveRange& other) const { return begin <= other.end && other.begin <= end; }
};

// A piece of memory and the moments in which the content must be kept: a single range, or two if the content is
// computed again. A piece with 0 bytes takes no memory.
struct Lifetime {
  std::size_t bytes;
  LiveRange first;
  std::optional<LiveRange> again = {};

  bool meets(const Lifetime& other) const;
};

struct MemoryPlan {
  std::vector<std::size_t> offsets;  // for each piece, multiples of kAlignment
  std::size_t bytes = 0;             // the arena's size

  static constexpr std::size_t kAlignment = 256;  // sufficient for any use on any device
};

// Places all pieces in a single arena, such that no two pieces with overlapping lifetimes share a byte. Pieces are
// placed by decreasing size, each in the smallest sufficient gap between pieces with overlapping lifetimes (Pisarchyk
// and Lee, "Efficient memory management for deep neural net inference", 2020, section 5.2). Deterministic.
MemoryPlan plan_memory(std::span<const Lifetime> pieces);

}  // namespace annulus
