#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// Pieces of work for all ranks, each given to whoever asks next, so that nobody waits for a slow rank. Rank 0 gives
// them out and works as well: it answers the others whenever it reports its own work, which should be every few
// milliseconds. Every rank makes one, takes pieces with next() until there are none, reports in between, and calls
// finish().
class WorkQueue {
 public:
  struct Totals {
    std::size_t pieces = 0, images = 0, bytes = 0;  // done since the queue was made, over all ranks
  };

  // What is still to be done, and whom to tell how far it is: both are rank 0's.
  WorkQueue(const World& world, std::vector<std::size_t> pieces, std::function<void(const Totals&)> heard);

  // A piece, or none: all are given out, or a rank wants to stop.
  std::optional<std::size_t> next();

  // Tells how much of a piece was done since the last report. False: a rank wants to stop; leave the piece.
  bool report(std::size_t images, std::size_t bytes);

  // Ends this rank's part, early where it is `stopping`: no rank gets another piece. Returns on rank 0 when all ranks
  // have ended theirs.
  void finish(bool stopping);

 private:
  struct Word {  // from a rank to rank 0
    std::int64_t images, bytes, finished_piece, wants_piece, stops;
  };

  std::int64_t tell(bool wants_piece, bool stops);
  std::int64_t answer(const Word& word);
  void serve(int rank);
  void serve_those_who_ask();

  const World& world_;
  const Communicator communicator_;
  std::vector<std::size_t> pieces_;
  std::size_t given_ = 0;
  std::function<void(const Totals&)> heard_;
  Totals totals_;
  Word word_{};
  double told_ = 0;  // when
  bool working_ = false, released_ = false, stopped_ = false;
  int at_work_;  // rank 0 only: the others that have not been released
};

}  // namespace annulus
