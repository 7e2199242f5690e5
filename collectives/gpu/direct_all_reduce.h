#pragma once

#include <cstddef>
#include <memory>

#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The direct all-reduce of ranks whose GPUs can all access each other's memory, as those of an NVSwitch can
// ======================================================================================================
//
// A ring of N ranks makes 2(N-1) exchanges, one after the other. Here each rank pulls from all others at the same time,
// in two steps:
//
//    raise "ready" on all others; await theirs
//    own chunk = the sum of this chunk in all arrays         (one kernel)
//    raise "summed" on all others; await theirs
//    other chunks = those of their ranks                     (N-1 copies by the copy engines)
//    raise "read" on all others; await theirs
//
// Each "raise and await" is one call of the driver (StreamFlags::exchange): no kernel spins, and the host waits for
// nothing. Each rank has a flag for each peer and each step, in its own memory, which the peer raises to the number of
// the all-reduce; they only grow, and are compared by signed distance.
//
// Small arrays take one step: a rank copies its array to memory that all others read, raises "ready", awaits theirs,
// and sums all copies for itself. The copies are in two places used alternately, so nobody needs to know when they were
// read: a rank writes its copy for the small array s + 2 after all ranks raised "ready" for s + 1, which they did after
// reading s. These arrays may be in any memory.
//
// Chunks are those of the ring, and each is summed in the ring's order, starting with the rank of its number: the bits
// are the ring's (collectives/gpu/ipc_ring.h), so either can continue what the other began.
struct DirectOptions {
  std::size_t small_bytes = 64 << 10;   // the largest small array. Not measured yet
  std::size_t scratch_bytes = 4 << 20;  // for larger arrays outside allocate()'s memory
};

// Collective over the world. Throws Error, on all ranks, if some GPU cannot access another one's memory, if there are
// no stream memory operations, or if there are more ranks than a kernel sums at a time (cuda::kMostPeers).
std::unique_ptr<PeerAllReduce> make_direct_all_reduce(const World& world, cuda::SideLane& lane,
                                                      DirectOptions options = {});

}  // namespace annulus
