#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "collectives/reduction.h"

namespace annulus {

// A collective operation on arrays anywhere in memory, with separate arrays for input and output.
struct Call {
  enum class Kind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather, broadcast };

  Kind kind = Kind::barrier;
  Reduction reduction = {};  // all-gathers and broadcasts use the type only
  std::size_t count = 0;     // elements of the array; of each rank's part in a reduce-scatter or an all-gather
  int root = 0;              // of a broadcast
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;

  std::size_t element_bytes() const { return bytes_of(reduction.type); }
};

std::string_view name_of(Call::Kind kind);  // "all-reduce"
// Returns "all-reduce of 1000 fp32 (sum)", "broadcast of 3 int64 from rank 1", "barrier".
std::string to_string(const Call& call);

}  // namespace annulus
