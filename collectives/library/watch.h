#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/annulus_collectives.h"
#include "collectives/world/all_reduce_progress.h"
#include "collectives/world/shared_memory.h"
#include "collectives/world/world.h"

namespace annulus {

struct Failure {
  annulus_status status = ANNULUS_OK;
  std::string text;
};

// Watches a group on a separate thread, and reports the first of: this rank makes no progress in an operation; the
// process of a rank on this node ends; this rank needs a rank on this node that has left; a rank on this node reports a
// failure.
//
// Time in which this process was frozen does not count: a stall is a number of polls that saw no progress.
class Watch {
 public:
  // What this rank is doing; by any thread. `busy`: it waits for other ranks, and `moves` grows while it gets on.
  struct Position {
    bool busy = false;
    std::uint64_t moves = 0;
    std::uint64_t operation = 0, allocation = 0;  // the current numbers; 0: none
    std::string text;                             // ": waiting for rank 3 on host a"
  };

  // `failed` is called once at most, by a thread that start() creates. Collective.
  Watch(const World& world, double timeout_seconds, std::function<Position()> position,
        std::function<void(const Failure&)> failed);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void start();

  // Returns "rank 3 on a".
  std::string name(int rank) const;

  void report(const Failure& failure);  // to the node's other ranks
  // This rank's process may end from now on. Operations and allocations with greater numbers fail on the node's other
  // ranks, with `reason` in the text.
  void leave(std::uint64_t operations, std::uint64_t allocations, const std::string& reason);

 private:
  struct Board;
  struct Peer {
    int rank;
    const Board* board;
    int process = -1;  // a descriptor for the process; negative: unknown
    bool ended = false;
  };

  void run();
  bool found_failure(Failure& failure);
  bool needs_absent(const Position& now, Failure& failure);
  bool stalled(const Position& now, Failure& failure);
  double still_seconds() const { return still_ * pause_seconds_; }

  std::vector<std::string> hosts_;        // by rank
  const double seconds_, pause_seconds_;  // the timeout; between polls
  std::function<Position()> position_;
  std::function<void(const Failure&)> failed_;
  std::unique_ptr<SharedMemory> memory_;
  Board* board_ = nullptr;  // this rank's; null if there is no shared memory
  std::vector<Peer> peers_;
  int stop_ = -1;  // a descriptor that wakes the thread
  std::uint64_t moves_ = 0;
  int still_ = 0;        // polls without progress
  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace annulus
