#pragma once

namespace annulus {

// Collective operations on an array. A reduce-scatter sums a chunk per rank, with the same bits as an all-reduce over
// the whole array; the rest of the rank's array is then undefined, and other ranks may read it until the next
// all-reduce or all-gather is complete. An all-gather copies every rank's chunk to all ranks.
enum class Verb { all_reduce, reduce_scatter, all_gather };

struct Collective {
  Verb verb = Verb::all_reduce;
  bool exact = false;  // messages do not round, whatever their format; an all-gather never rounds
};

// Memory for arrays: an array per rank, or a common array in which each rank writes a chunk.
enum class Memory { own, common };

}  // namespace annulus
