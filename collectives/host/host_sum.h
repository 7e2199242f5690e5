#pragma once

#include <memory>
#include <optional>
#include <string>

#include "collectives/sum_algorithm.h"
#include "collectives/wire.h"
#include "collectives/world/patience.h"
#include "collectives/world/world.h"

namespace annulus {

// An algorithm that adds in the host's memory, chosen for a world.
struct HostSum {
  std::unique_ptr<SumAlgorithm> algorithm;
  std::string name;                    // for the user
  std::string why;                     // this one
  std::shared_ptr<Patience> patience;  // with which it waits
};

// `algorithm` and `crossover`: see make_all_reduce(); one of those that add in the host's memory. Collective over the
// world. Throws Error where this one cannot be used here.
HostSum make_host_sum(const std::string& algorithm, const World& world, Wire wire,
                      std::optional<std::size_t> crossover);

}  // namespace annulus
