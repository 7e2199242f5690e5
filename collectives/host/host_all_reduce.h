#pragma once

#include <memory>
#include <optional>
#include <string>

#include "collectives/all_reduce_algorithm.h"
#include "collectives/wire_type.h"
#include "collectives/world/all_reduce_context.h"
#include "collectives/world/world.h"

namespace annulus {

// An algorithm that sums in the host's memory, chosen for a world.
struct HostAllReduce {
  std::unique_ptr<AllReduceAlgorithm> algorithm;
  std::string name;  // for the user
  std::string why;   // it was chosen, for the user
};

// `algorithm` and `crossover`: see make_all_reduce(); `algorithm` must sum in host memory. Collective over the world.
// Throws Error if it cannot be used here.
HostAllReduce make_host_all_reduce(const std::string& algorithm, const World& world, WireType wire,
                                   std::optional<std::size_t> crossover);

// See make_shard_all_reduce(). Collective over the world.
HostAllReduce make_host_shard_all_reduce(const World& world, std::size_t shards);

}  // namespace annulus
