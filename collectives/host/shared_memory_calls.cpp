#include <algorithm>
#include <cstring>
#include <utility>

#include "collectives/host/shared_memory_all_reduce.h"
#include "kernels/base/error.h"

namespace annulus {

// How a call passes a rank's array to the other ranks. A buffer has `blocks` blocks of equal size, each with the same
// part of `count` elements.
struct SharedMemoryAllReduce::Exchange {
  std::span<const std::byte> sent;  // the array that other ranks read; may be empty
  std::size_t blocks;
  std::function<void(const Range& part, std::byte* buffer)> write;  // `part` of the array
  // Uses `part` of every rank's array or buffer, with blocks of `size` elements.
  std::function<void(const Range& part, std::span<std::byte* const> arrays, std::size_t size)> read;
};

void SharedMemoryAllReduce::run(const Call& call) {
  if (across_nodes_ && call.kind != Call::Kind::all_reduce) fail("a {} needs a single node", to_string(call));
  switch (call.kind) {
    case Call::Kind::barrier:
      meet(call, std::nullopt, 1);
      return;
    case Call::Kind::all_reduce:
      return reduce(call);
    case Call::Kind::reduce_scatter:
      return reduce_scatter(call);
    case Call::Kind::all_gather:
      return all_gather(call);
    case Call::Kind::broadcast:
      return broadcast(call);
  }
}

// Small arrays go through copies_, as in reduce_copies(). Arrays in shared memory are read there. Others go through the
// halves of the stage, which are used alternately, so a piece needs a single barrier, and the last two.
void SharedMemoryAllReduce::exchange(const Call& call, const Exchange& exchange) {
  const std::size_t bytes_each = exchange.blocks * call.element_bytes();
  if (call.count * bytes_each <= kMostSmallBytes) {
    const auto copy = copies_[++small_ones_ % 2];
    if (call.count > 0) exchange.write({0, call.count}, copy.data());
    meet(call, std::nullopt, 1);
    if (call.count > 0) exchange.read({0, call.count}, memory_.everywhere(copy), call.count);
    return;
  }
  const std::size_t half = stage_.size() / 2, fit = half / bytes_each;
  const auto place = exchange.sent.empty() ? std::nullopt : memory_.find(exchange.sent);
  if (!place) exchange.write({0, std::min(fit, call.count)}, stage_.data());
  const bool all_in_place = meet(call, place, 2);
  if (all_in_place || (call.kind == Call::Kind::broadcast && arrays_[static_cast<std::size_t>(call.root)] != nullptr)) {
    exchange.read({0, call.count}, arrays_, call.count);
  } else {
    bool ready = std::ranges::all_of(arrays_, [](const std::byte* array) { return array == nullptr; });
    for (std::size_t begin = 0, number = 0; begin < call.count; begin += fit, ++number) {
      const Range part{begin, std::min(begin + fit, call.count)};
      const auto buffer = stage_.subspan(number % 2 * half, half);
      if (!std::exchange(ready, false)) {
        exchange.write(part, buffer.data());
        barrier_.wait(1, 2, lane());
      }
      exchange.read(part, memory_.everywhere(buffer), part.size());
    }
  }
  barrier_.wait(2, 2, lane());  // no rank reads this rank's array or stage any longer
}

void SharedMemoryAllReduce::reduce_scatter(const Call& call) {
  const std::size_t element = call.element_bytes(), count = call.count;
  exchange(call, {.sent = {call.send, ranks() * count * element},
                  .blocks = ranks(),
                  .write =
                      [&](const Range& part, std::byte* buffer) {
                        for (std::size_t rank = 0; rank < ranks(); ++rank)
                          std::memcpy(buffer + rank * part.size() * element,
                                      call.send + (rank * count + part.begin) * element, part.size() * element);
                      },
                  .read =
                      [&](const Range& part, std::span<std::byte* const> arrays, std::size_t size) {
                        const std::size_t begin = own() * size;
                        annulus::reduce(loops_of(call.reduction), arrays, own(), {begin, begin + part.size()},
                                        call.receive + part.begin * element);
                      }});
}

void SharedMemoryAllReduce::all_gather(const Call& call) {
  const std::size_t element = call.element_bytes();
  exchange(call, {.sent = {call.send, call.count * element},
                  .blocks = 1,
                  .write =
                      [&](const Range& part, std::byte* buffer) {
                        std::memcpy(buffer, call.send + part.begin * element, part.size() * element);
                      },
                  .read =
                      [&](const Range& part, std::span<std::byte* const> arrays, std::size_t) {
                        for (std::size_t turn = 0; turn < ranks(); ++turn) {  // not all from the same rank at a time
                          const std::size_t rank = (own() + turn) % ranks();
                          std::byte* const to = call.receive + (rank * call.count + part.begin) * element;
                          if (to != arrays[rank]) std::memcpy(to, arrays[rank], part.size() * element);
                        }
                      }});
}

void SharedMemoryAllReduce::broadcast(const Call& call) {
  const std::size_t element = call.element_bytes(), root = static_cast<std::size_t>(call.root);
  const bool sends = own() == root;
  exchange(call, {.sent = {call.send, sends ? call.count * element : 0},
                  .blocks = 1,
                  .write =
                      [&](const Range& part, std::byte* buffer) {
                        if (sends) std::memcpy(buffer, call.send + part.begin * element, part.size() * element);
                      },
                  .read =
                      [&](const Range& part, std::span<std::byte* const> arrays, std::size_t) {
                        std::byte* const to = call.receive + part.begin * element;
                        if (!sends) std::memcpy(to, arrays[root], part.size() * element);
                      }});
}

}  // namespace annulus
