#pragma once

#include <cstddef>
#include <memory>

#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The ring all-reduce between ranks whose GPUs can access each other's memory
// ===========================================================================
//
// It is the ring of ring.h, with the same schedule, but nothing is sent: a rank *pulls*. It has mapped the previous
// rank's arrays, and adds or copies from there:
//
//    for (RingStep step : reduce_scatter(rank, size)) { await previous; own chunk(step.receive) += previous's; raise }
//    for (RingStep step : all_gather(rank, size))     { await previous; own chunk(step.receive)  = previous's; raise }
//
// A flag in this rank's memory, raised by the previous rank, shows whether the previous rank has the chunk. Waiting for
// it and raising the next rank's flag are stream operations (collectives/gpu/stream_flags.h): the host queues a whole
// all-reduce on the stream and continues, and no kernel ever spins. That matters if processes share a GPU, because they
// take turns for some milliseconds each: a kernel that waits for another process would keep that process from running.
//
// Chunks are cut into segments, so that a rank pulls a segment while the previous rank produces the next.
//
// Why nothing is overwritten that is still being read
// ---------------------------------------------------
// Rank n's arrays are read by the next rank only, and written by n only, so each segment has a single reader and
// writer. In an all-reduce n writes a segment up to twice: the partial sum, and later the complete sum in the same
// place.
//
// - The partial sum. Before it, the next rank reads nothing in this segment, because it reads a segment only after the
//   flag was raised. (The chunk with n's own number is given away unchanged and gets no partial sum.)
// - The complete sum. It must not be written before the next rank has read the partial sum. But it *contains* the
//   partial sum: the next rank added n's partial sum to a local share and then raised the flag on the rank after it,
//   and so on round the ring to the rank that completed the segment, and from there round the ring again to n. Each
//   link in this chain is a flag that is raised after the stream's preceding work, so the read came before the write.
// - After the all-reduce. When n has the last segment, the next rank may still copy from n's array. So each rank raises
//   a second flag on the previous rank, "consumed", when it has pulled everything, and an all-reduce is complete on a
//   rank when this flag is up. From then on the array is the caller's: to clear it, or to put the next step's gradients
//   there.
// - Flags are counters that only grow, over all all-reduces: they are never reset, so a late reader never sees an old
//   value again. "ready" counts exchanges, "consumed" all-reduces. Both wrap around after 2^32. Comparing by signed
//   distance allows this, because no rank is ahead of a neighbour by more than a single all-reduce: each must be
//   consumed first.
// - The scratch for arrays in other memory is used by piece after piece; there each piece is a separate all-reduce.
//
// The result is bit-identical on all ranks: each chunk is summed once, along a single path, and then copied.
struct IpcRingOptions {
  std::size_t segment_bytes = 1 << 20;  // maximum. Not measured yet: smaller segments need more flags; with larger
                                        // ones the ring waits longer for the first segment
  std::size_t scratch_bytes = 4 << 20;  // for arrays outside allocate()'s memory
};

// Collective over the world. Throws Error, on all ranks, if a rank cannot access the neighbour's memory or has no
// stream memory operations.
std::unique_ptr<PeerAllReduce> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options = {});

}  // namespace annulus
