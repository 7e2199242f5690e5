#pragma once

#include <cstddef>
#include <memory>

#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The direct all-reduce between ranks whose GPUs can all access each other's memory, as on an NVSwitch
// ===================================================================================================
//
// A ring with N ranks makes 2(N-1) exchanges in sequence. Here each rank pulls from all others at the same time, in two
// steps:
//
//    raise "ready" on all others; await theirs
//    own chunk = the sum over this chunk in all arrays       (one kernel)
//    raise "summed" on all others; await theirs
//    other chunks = their ranks' sums                        (N-1 copies by the copy engines)
//    raise "read" on all others; await theirs
//
// Each "raise and await" is a single driver call (StreamFlags::exchange): no kernel spins, and the host waits for
// nothing. Each rank's memory has a flag for each peer and each step, which the peer raises to the all-reduce's number;
// flags only grow, and are compared by signed distance.
//
// Small arrays take a single step: a rank copies its array to memory that all others read, raises "ready", awaits all
// others' "ready", and sums all copies for itself. The copies are in two places used alternately, so nobody needs to
// know when they were read: a rank overwrites the copy for small array s with s + 2 after all ranks raised "ready" for
// s + 1, thus after they read s. These arrays may be in any memory.
//
// Chunks and their addition order are the ring's, starting with the rank that has the chunk's number: the bits are the
// ring's (collectives/gpu/ipc_ring.h), so either can continue what the other began.
struct DirectOptions {
  std::size_t small_bytes = 64 << 10;   // the largest small array. Not measured yet
  std::size_t scratch_bytes = 4 << 20;  // for larger arrays outside allocate()'s memory
};

// Collective over the world. Throws Error, on all ranks, if some GPU cannot access another GPU's memory, if stream
// memory operations are not supported, or if there are more ranks than a kernel sums at a time (cuda::kMostPeers).
std::unique_ptr<PeerAllReduce> make_direct_all_reduce(const World& world, cuda::SideLane& lane,
                                                      DirectOptions options = {});

}  // namespace annulus
