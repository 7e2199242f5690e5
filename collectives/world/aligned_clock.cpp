#include "collectives/world/aligned_clock.h"

#include <limits>

#include "kernels/base/clock.h"

namespace annulus {

namespace {

constexpr int kExchanges = 50;  // enough to include an undisturbed exchange; well under a millisecond on a node
void answer(int rank, const Channel& channel) {
  for (int i = 0; i < kExchanges; ++i) {
    channel.receive({}, rank);
    const double here = now_seconds();
    channel.send(std::as_bytes(std::span(&here, 1)), rank);
  }
}

double ask_root(const Channel& channel) {
  double shortest = std::numeric_limits<double>::infinity();
  double offset = 0;
  for (int i = 0; i < kExchanges; ++i) {
    const double begin = now_seconds();
    double there = 0;
    channel.send({}, 0);
    channel.receive(std::as_writable_bytes(std::span(&there, 1)), 0);
    const double end = now_seconds();
    if (end - begin < shortest) {
      shortest = end - begin;
      offset = there - (begin + end) / 2;  // assumes that both directions take equally long
    }
  }
  return offset;
}

}  // namespace

double measured_clock_offset(const World& world, bool asks) {
  const Channel channel = world.channel();
  const std::vector<std::uint64_t> asking = world.gather(std::uint64_t{asks});
  if (asks) return ask_root(channel);
  if (world.root())
    for (int rank = 1; rank < world.size(); ++rank)
      if (asking[static_cast<std::size_t>(rank)]) answer(rank, channel);
  return 0;
}

double clock_offset_to_root(const World& world) {
  double offset = measured_clock_offset(world, world.local_rank() == 0 && !world.root());
  world.node().broadcast(std::as_writable_bytes(std::span(&offset, 1)));
  return offset;
}

}  // namespace annulus
