#pragma once

#include <cstddef>
#include <span>

#include "collectives/wire_type.h"

namespace annulus {

// The ring's transport: sends bytes to the next rank and receives from the previous rank. Used by a single thread.
class RingLink {
 public:
  virtual ~RingLink() = default;

  // Starts an exchange: sends `to_next` to the next rank and receives landing.size() bytes from the previous rank,
  // which may be written to `landing`. Exchanges are in order; several may be in flight. Either span may be empty.
  // `landing` must not be touched until the exchange is collected, `to_next` until finish(); after an Error, both until
  // the link is destroyed.
  virtual void post(std::span<const std::byte> to_next, std::span<std::byte> landing) = 0;

  // Waits for the oldest exchange that was posted and not yet collected. Returns the received bytes, in `landing` or in
  // the link's memory, valid until the next call. Throws Error if the neighbour is gone.
  virtual std::span<const std::byte> collect() = 0;

  // Waits until nobody reads the sent bytes any longer. Only then may the caller overwrite them; before, only received
  // data may be written there, and only if it could not have arrived without the next rank having read the old bytes.
  virtual void finish() {}

  // Returns memory from which the link sends with the fewest copies; empty if any memory will do.
  virtual std::span<std::byte> allocate(std::size_t) { return {}; }

  // The messages' number format, and the bytes sent for `bytes` bytes of float32.
  virtual WireType wire() const { return WireType::fp32; }
  virtual std::size_t bytes_on_wire(std::size_t bytes) const { return bytes; }

  // Rounds values to what the next rank receives, if the link does not carry every bit.
  virtual void round(std::span<float>) const {}
  // Returns a link that carries every bit. Exchanges may go over it if none is in flight on this link, and vice versa.
  virtual RingLink& exact() { return *this; }
};

}  // namespace annulus
