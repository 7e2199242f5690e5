#pragma once

#include <memory>

#include "collectives/all_reduce.h"
#include "collectives/world/world.h"
#include "kernels/device.h"

namespace annulus {

// Creates what broadcasts rank 0's array by MPI_Bcast, as a run does with its first weights, so that a broadcast is
// measured like an all-reduce: enqueue() broadcasts, whatever the verb, and returns when this rank has the array.
std::unique_ptr<AllReduce> make_broadcast(const World& world, Device& device);

}  // namespace annulus
