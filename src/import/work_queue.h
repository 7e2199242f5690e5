#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "collectives/world/world.h"

namespace annulus {

// Distributes pieces dynamically over all ranks, so that no rank waits for a slow rank. Rank 0 hands out pieces and
// works as well: it answers other ranks whenever it reports progress, which should be every few milliseconds. Every
// rank constructs a queue, takes pieces with next() until none are left, calls report() in between, and calls finish().
class WorkQueue {
 public:
  struct Totals {
    std::size_t pieces = 0, images = 0, bytes = 0;  // done since the queue was made, over all ranks
  };

  // `pieces`: the work to do; `progressed`: called on progress. Only rank 0 uses them.
  WorkQueue(const World& world, std::vector<std::size_t> pieces, std::function<void(const Totals&)> progressed);

  // Returns a piece, or nothing if all are handed out or a rank wants to stop.
  std::optional<std::size_t> next();

  // Reports the progress since the last report. Returns false if a rank wants to stop; the piece must then be
  // abandoned.
  bool report(std::size_t images, std::size_t bytes);

  // Ends this rank's work. `stopping`: early, and no rank gets another piece. On rank 0, returns after all ranks have
  // finished.
  void finish(bool stopping);

 private:
  struct Message {  // from a rank to rank 0
    std::int64_t images, bytes, finished_piece, wants_piece, stops;
  };

  std::int64_t send(bool wants_piece, bool stops);
  std::int64_t answer(const Message& message);
  void serve(int rank);
  void serve_requests();

  const World& world_;
  const Communicator communicator_;
  std::vector<std::size_t> pieces_;
  std::size_t given_ = 0;
  std::function<void(const Totals&)> progressed_;
  Totals totals_;
  Message message_{};
  double sent_ = 0;  // when the last message was sent
  bool working_ = false, released_ = false, stopped_ = false;
  int at_work_;  // rank 0 only: other ranks not yet released
};

}  // namespace annulus
