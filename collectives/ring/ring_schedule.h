#pragma once

#include <cstddef>
#include <ranges>

namespace annulus {

// The ring's schedule as pure arithmetic: which chunk goes to the next rank while which chunk comes from the previous
// rank. ring.h has the picture. Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters
// of workstations", J. Parallel Distrib. Comput. 69 (2009).
struct RingStep {
  std::size_t send = 0;     // the chunk that goes to rank + 1
  std::size_t receive = 0;  // the chunk that comes from rank - 1, which sends it in the same step
  bool operator==(const RingStep&) const = default;
};

namespace ring_schedule_detail {

// Returns size - 1 steps; in each, both chunks move to the previous rank's place.
constexpr auto steps_from(std::size_t first_send, std::size_t size) {
  return std::views::iota(std::size_t{1}, size) | std::views::transform([=](std::size_t step) {
           return RingStep{.send = (first_send + size + 1 - step) % size, .receive = (first_send + size - step) % size};
         });
}

}  // namespace ring_schedule_detail

// A chunk starts at the rank with the chunk's number and collects another rank's share at each of size - 1 hops. It is
// then complete on a single rank: rank r ends with all of chunk r + 1 (mod size).
constexpr auto reduce_scatter(std::size_t rank, std::size_t size) {
  return ring_schedule_detail::steps_from(rank, size);
}

// The complete chunks go round once more, from the ranks where reduce_scatter left them to all ranks.
constexpr auto all_gather(std::size_t rank, std::size_t size) {
  return ring_schedule_detail::steps_from(rank + 1, size);
}

}  // namespace annulus
