#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "collectives/ring/ring_link.h"
#include "collectives/wire_type.h"
#include "kernels/base/host_memory.h"

namespace annulus {

// Sends float32 values in a narrower format over another link.
class CompressedLink final : public RingLink {
 public:
  // `in_flight`: maximum number of exchanges in flight.
  CompressedLink(std::unique_ptr<RingLink> link, WireType wire, std::size_t in_flight);

  void post(std::span<const std::byte> to_next, std::span<std::byte> landing) override;
  std::span<const std::byte> collect() override;
  void finish() override { link_->finish(); }
  WireType wire() const override { return wire_; }
  std::size_t bytes_on_wire(std::size_t bytes) const override {
    return link_->bytes_on_wire(coded_bytes(wire_, bytes / sizeof(float)));
  }
  void round(std::span<float> values) const override;
  RingLink& exact() override { return link_->exact(); }

 private:
  struct Exchange {
    HostArray<std::byte> sent, arrived;  // grow to the largest need
    std::span<float> landing;
  };

  WireType wire_;
  std::vector<Exchange> exchanges_;
  std::size_t posted_ = 0, collected_ = 0;
  std::unique_ptr<RingLink> link_;  // last, because it may still be sending from the members above
};

}  // namespace annulus
