#pragma once

#include <cstddef>
#include <span>

#include "collectives/wire_type.h"

namespace annulus {

// The wire under the ring: bytes go to the next rank while as many come from the previous one. Used by one thread.
class RingLink {
 public:
  virtual ~RingLink() = default;

  // Starts an exchange: sends `to_next` to the next rank and receives landing.size() bytes from the previous one,
  // which may be written to `landing`. Exchanges are in order; several may be in flight. Either span may be empty.
  // `landing` must stay as it is until the exchange is collected, `to_next` until finish(); after an Error both until
  // the link is destroyed.
  virtual void post(std::span<const std::byte> to_next, std::span<std::byte> landing) = 0;

  // Waits for the oldest exchange that was posted and not yet collected. Returns where its bytes lie, in `landing` or
  // in memory of the link's, valid until the next call. Throws Error where the neighbour is gone.
  virtual std::span<const std::byte> collect() = 0;

  // Waits until nobody looks any longer at what was sent. Then it may be overwritten by anybody; before, only by what
  // the exchanges themselves bring, and by that only where it could not be there without the next rank having looked.
  virtual void finish() {}

  // Memory from which it sends with the fewest copies; empty where all memory is alike.
  virtual std::span<std::byte> allocate(std::size_t) { return {}; }

  // What values travel as, and what so many bytes are on the wire.
  virtual WireType wire() const { return WireType::fp32; }
  virtual std::size_t bytes_on_wire(std::size_t bytes) const { return bytes; }

  // Makes values what the next rank will see of them, where a link does not carry every bit.
  virtual void round(std::span<float>) const {}
};

}  // namespace annulus
