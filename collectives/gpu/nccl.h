#pragma once

#include <memory>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The vendor's all-reduce: what ours are compared with, and what is best between GPUs that cannot reach each other's
// memory. Collective over the world. Throws Error, on all ranks, where two of them share a GPU.
std::unique_ptr<StreamAlgorithm> make_nccl(const World& world, cuda::SideLane& lane);

}  // namespace annulus
