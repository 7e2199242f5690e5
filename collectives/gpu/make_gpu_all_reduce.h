#pragma once

#include <memory>
#include <string>

#include "collectives/all_reduce.h"

namespace annulus {

// make_all_reduce() for arrays in GPU memory. REQUIRES: several ranks.
std::unique_ptr<AllReduce> make_gpu_all_reduce(const std::string& algorithm, const World& world, Device& device,
                                               WireType wire, std::optional<std::size_t> crossover);

}  // namespace annulus
