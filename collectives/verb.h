#pragma once

namespace annulus {

// What is done to an array of every rank: an all-reduce, or half of one. A reduce-scatter gives a rank the sums of one
// chunk, the same bits as an all-reduce of the whole array; the rest of the rank's array is undefined then, and may be
// read by other ranks until the next all-reduce or all-gather is complete. An all-gather copies every rank's chunk to
// all ranks.
enum class Verb { all_reduce, reduce_scatter, all_gather };

struct Collective {
  Verb verb = Verb::all_reduce;
  bool exact = false;  // messages do not round, whatever their format is; those of an all-gather never do
};

// Memory for arrays: one array for each rank, or one in common, of which each rank writes a chunk.
enum class Memory { own, common };

}  // namespace annulus
