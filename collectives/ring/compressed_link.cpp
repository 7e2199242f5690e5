#include "collectives/ring/compressed_link.h"

namespace annulus {

CompressedLink::CompressedLink(std::unique_ptr<RingLink> link, WireType wire, std::size_t in_flight)
    : wire_(wire), exchanges_(in_flight), link_(std::move(link)) {}

void CompressedLink::post(std::span<const std::byte> to_next, std::span<std::byte> landing) {
  Exchange& exchange = exchanges_[posted_++ % exchanges_.size()];
  const std::span values(reinterpret_cast<const float*>(to_next.data()), to_next.size() / sizeof(float));
  exchange.landing = {reinterpret_cast<float*>(landing.data()), landing.size() / sizeof(float)};
  const auto sent = exchange.sent.first(coded_bytes(wire_, values.size()));
  encode(wire_, values, sent);
  link_->post(sent, exchange.arrived.first(coded_bytes(wire_, exchange.landing.size())));
}

std::span<const std::byte> CompressedLink::collect() {
  const Exchange& exchange = exchanges_[collected_++ % exchanges_.size()];
  decode(wire_, link_->collect(), exchange.landing);
  return std::as_bytes(exchange.landing);
}

void CompressedLink::round(std::span<float> values) const {
  round_to(wire_, values);
}

}  // namespace annulus
