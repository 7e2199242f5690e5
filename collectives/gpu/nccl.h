#pragma once

#include <memory>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// NCCL's all-reduce: the baseline for ours, and the best choice between GPUs that cannot access each other's memory.
// Arrays in allocate()'s memory need no copies to buffers of NCCL's.
// Collective over the world. Throws Error, on all ranks, if two of them share a GPU.
std::unique_ptr<StreamAlgorithm> make_nccl(const World& world, cuda::SideLane& lane);

}  // namespace annulus
