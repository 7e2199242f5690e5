#pragma once

#include <cstddef>
#include <memory>

#include "collectives/gpu/peer_all_reduce.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The ring all-reduce of ranks whose GPUs can access each other's memory
// ======================================================================
//
// It is the ring of ring.h, with the same schedule, but nothing is sent: a rank *pulls*. It has mapped its previous
// rank's arrays, and its stream adds or copies from there:
//
//    for (RingStep step : reduce_scatter(rank, size)) { await previous; own chunk(step.receive) += previous's; raise }
//    for (RingStep step : all_gather(rank, size))     { await previous; own chunk(step.receive)  = previous's; raise }
//
// A flag in this rank's memory, raised by the previous rank, shows whether the previous rank has the chunk. Waiting for
// it and raising the next rank's flag are operations of the stream (collectives/gpu/stream_flags.h): the host queues a
// whole all-reduce on the stream and continues, and no kernel ever spins. That matters if processes share a GPU,
// because they take turns of some milliseconds: a kernel that waits for another process would keep that process from
// running.
//
// Chunks are cut into segments, so that a rank pulls one while its previous rank produces the next.
//
// Why nothing is overwritten that is still being read
// ---------------------------------------------------
// Rank n's arrays are read by the next rank only, and written by n only, so each segment of a chunk has one reader and
// one writer. In one all-reduce n writes a segment up to twice: its partial sum, and later the complete sum in its
// place.
//
// - The partial sum. Before it, the next rank reads nothing of this segment, because it reads a segment only after its
//   flag was raised. (The chunk with n's own number is given away unchanged and gets no partial sum.)
// - The complete sum. It must not be written before the next rank has read the partial one. But it *contains* it: the
//   next rank added n's partial sum to its own share and then raised the flag of its own next rank, and so on round the
//   ring to the rank that completed the segment, and from there round the ring again to n. Each link of this chain is a
//   flag that is raised after the preceding work of the stream, so the read came before the write.
// - After the all-reduce. When n has its last segment, the next rank may still copy from n's array. So each rank raises
//   a second flag of its previous one, "consumed", when it has pulled everything, and an all-reduce is complete on a
//   rank when this flag is up. From then on the array is the caller's: to clear it, or to put the next step's gradients
//   there.
// - Flags are counters that only grow, over all all-reduces: they are never reset, so a late reader never sees an old
//   value again. "ready" counts exchanges, "consumed" all-reduces. Both wrap around after 2^32. Comparing by signed
//   distance allows this, because no rank is ahead of its neighbour by more than one all-reduce: each must be consumed
//   first.
// - The scratch for arrays in other memory is used by one piece after the other; there each piece is an all-reduce of
//   its own.
//
// The result is bit-identical on all ranks: each chunk is summed once, along one path, and then copied.
struct IpcRingOptions {
  std::size_t segment_bytes = 1 << 20;  // maximum. Not measured yet: smaller ones need more flags; with larger ones
                                        // the ring waits longer for its first one
  std::size_t scratch_bytes = 4 << 20;  // for arrays outside allocate()'s memory
};

// Collective over the world. Throws Error, on all ranks, if one of them cannot access its neighbour's memory or has no
// stream memory operations.
std::unique_ptr<PeerAllReduce> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options = {});

}  // namespace annulus
