#pragma once

#include <cstddef>
#include <span>

namespace annulus {

// The wire under the ring: bytes go to the next rank while as many come from the previous one. Used by one thread.
class RingLink {
 public:
  virtual ~RingLink() = default;

  // Starts an exchange: sends `to_next` to the next rank and receives landing.size() bytes from the previous one,
  // which may be written to `landing`. Exchanges are in order; several may be in flight. Either span may be empty.
  // Both must stay as they are until the exchange is collected or, after an Error, until the link is destroyed.
  virtual void post(std::span<const std::byte> to_next, std::span<std::byte> landing) = 0;

  // Waits for the oldest exchange that was posted and not yet collected. Returns where its bytes lie, in `landing` or
  // in memory of the link's, valid until the next call. Throws Error where the neighbour is gone.
  virtual std::span<const std::byte> collect() = 0;
};

}  // namespace annulus
