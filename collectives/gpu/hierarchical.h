#pragma once

#include <memory>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/wire_type.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The all-reduce over several nodes whose GPUs can access each other's memory within a node. A GPU sends only its
// chunk, 1/N of each array on nodes with N GPUs, and all the node's network adapters send at the same time:
//
//    reduce-scatter on the node      (collectives/gpu/direct_all_reduce.h)
//    all-reduce of the own chunk     with the GPUs on other nodes that have the same chunk, by NCCL, in messages of
//                                    `wire` (collectives/gpu/nccl.h)
//    all-gather on the node
//
// Everything is queued on a single stream. Collective over the world. Throws Error, on all ranks, if the nodes do not
// have the same number of ranks, at least two, if two ranks share a GPU, or if GPUs cannot access each other's memory.
std::unique_ptr<StreamAlgorithm> make_gpu_hierarchical(const World& world, cuda::SideLane& lane, WireType wire);

}  // namespace annulus
