#pragma once

#include <optional>

#include "collectives/call.h"
#include "collectives/world/node_barrier.h"
#include "collectives/world/shared_memory.h"
#include "kernels/base/error.h"

namespace annulus {

// The ranks called different operations. Thrown on all ranks of a node.
class CallMismatch : public Error {
 public:
  using Error::Error;
};

// A call in a barrier's note: with it, ranks compare their calls, and learn which ranks' arrays are in shared memory.
class CallNote {
 public:
  CallNote(const Call& call, const std::optional<SharedMemory::Place>& place)
      : note_{static_cast<std::uint64_t>(call.kind) | static_cast<std::uint64_t>(call.reduction.type) << 8 |
                  static_cast<std::uint64_t>(call.reduction.operation) << 16 |
                  static_cast<std::uint64_t>(call.root) << 32,
              call.count, place ? (place->region + 1) << kOffsetBits | place->offset : 0} {}
  explicit CallNote(const NodeBarrier::Note& note) : note_(note) {}

  const NodeBarrier::Note& note() const { return note_; }

  bool same_call(const CallNote& other) const { return note_[0] == other.note_[0] && note_[1] == other.note_[1]; }
  Call call() const {  // without arrays
    return {.kind = static_cast<Call::Kind>(note_[0] & 0xff),
            .reduction = {static_cast<ElementType>(note_[0] >> 8 & 0xff),
                          static_cast<ReduceOperation>(note_[0] >> 16 & 0xff)},
            .count = note_[1],
            .root = static_cast<int>(note_[0] >> 32)};
  }
  // Of the array; none if it is elsewhere.
  std::optional<SharedMemory::Place> place() const {
    if (note_[2] == 0) return std::nullopt;
    return SharedMemory::Place{(note_[2] >> kOffsetBits) - 1, note_[2] & ((std::uint64_t{1} << kOffsetBits) - 1)};
  }

 private:
  static constexpr int kOffsetBits = 48;  // of an address

  NodeBarrier::Note note_;
};

}  // namespace annulus
