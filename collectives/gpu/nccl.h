#pragma once

#include <memory>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/wire_type.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// NCCL's all-reduce: the baseline for ours, and the best choice between GPUs that cannot access each other's memory.
// Arrays in allocate()'s memory need no copies to NCCL's buffers.
//
// With `wire` bf16 or fp16 it is our own algorithm over NCCL's messages, because NCCL would add in 16 bits, too,
// rounding at every hop. Every rank owns a chunk:
//
//    encode                          the array, except for the own chunk
//    send each chunk to the owner    all to all
//    add in float32, round           the own chunk, from the own share on, then the next ranks' in turn
//    send the own sum to all         all to all
//    decode                          the array, the own chunk, too: all ranks have the same bits
//
// It sends as many numbers as a ring, in two steps, has no reduce-scatter or all-gather, and cannot be used for sums
// that must be exact.
//
// Collective over the world. Throws Error, on all ranks, if two ranks share a GPU, or if all-reduces of whole numbers
// are not exact.
std::unique_ptr<StreamAlgorithm> make_nccl(const World& world, cuda::SideLane& lane, WireType wire = WireType::fp32);

}  // namespace annulus
