#pragma once

#include <cstddef>
#include <memory>

#include "collectives/gpu/stream_algorithm.h"
#include "collectives/world/world.h"

namespace annulus {

namespace cuda {
class SideLane;
}  // namespace cuda

// The ring all-reduce of ranks whose GPUs see each other's memory
// ===============================================================
//
// It is the ring of ring.h, with the same schedule, but nothing is sent: a rank *pulls*. It has its previous rank's
// arrays mapped, and its stream adds from there, or copies from there:
//
//    for (RingStep step : reduce_scatter(rank, size)) { previous has it?  own chunk(step.receive) += previous's; tell }
//    for (RingStep step : all_gather(rank, size))     { previous has it?  own chunk(step.receive)  = previous's; tell }
//
// Whether the previous rank has it, a flag says, which lies in this rank's memory and which the previous one raises.
// Waiting for it and raising the next one's are operations of the stream (collectives/gpu/stream_flags.h): the host
// puts a whole sum on the stream and goes its way, and no kernel ever spins. That matters where processes share a GPU,
// as these take turns of some milliseconds: a kernel that waits for another process would keep it from running.
//
// Chunks are cut into segments, so that a rank pulls one while its previous rank makes the next.
//
// Why nothing is overwritten that somebody still reads
// ----------------------------------------------------
// Rank n's arrays are read by the next rank only, and written by n only, so there is one reader and one writer for each
// segment of a chunk. In one sum n writes a segment up to twice: its partial sum, and later the complete sum in its
// place.
//
// - The partial sum. Before it, the next rank reads nothing of this segment: what it reads first is what it is told is
//   there. (The one chunk that n gives away as it is, its own number's, gets no partial sum.)
// - The complete sum. It must not come before the next rank has read the partial one. But it *contains* it: the next
//   rank added n's partial sum to its own share and then told its own next rank, and so on round the ring to whoever
//   completed the segment, and from there round the ring again to n. Each link of this chain is a flag that is raised
//   after the stream's work before it, so the reading came before the writing.
// - After the sum. When n has its last segment, the next rank may still copy from n's array. So each rank raises a
//   second flag of its previous one when it has pulled all, "consumed", and a sum is complete on a rank when that has
//   come. From then on the array is the caller's: to clear it, or to put the next step's gradients there.
// - Flags are counters and only grow, over all sums: there is nothing to take back, and no moment at which a late
//   reader could see an old one again. "ready" counts exchanges, "consumed" sums. Both wrap around after 2^32, which
//   comparing by signed distance allows: no rank is ahead of its neighbour by more than a sum, as that must be
//   consumed.
// - The scratch for arrays that lie elsewhere is used by one piece after the other: for it, a piece is a sum.
//
// All ranks have the same bits: each chunk is added up once, along one path, and then copied.
struct IpcRingOptions {
  std::size_t segment_bytes = 1 << 20;  // at most. Not measured yet: the smaller, the more flags; the larger, the
                                        // longer a ring waits for its first one
  std::size_t scratch_bytes = 4 << 20;  // for arrays that do not lie in allocate()'s memory
};

// Collective over the world. Throws Error, on all ranks, where one of them cannot reach its neighbour's memory, or has
// no stream memory operations.
std::unique_ptr<StreamAlgorithm> make_ipc_ring(const World& world, cuda::SideLane& lane, IpcRingOptions options = {});

}  // namespace annulus
