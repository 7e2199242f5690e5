#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/relaxed.h"

namespace annulus {

// How far an all-reduce has come, for a watchdog. Written by the thread that adds and read by another one; of a sum
// that stands still, all that is seen is of the same moment.
class AllReduceProgress {
 public:
  static constexpr int kNobody = -1;

  struct Step {
    const char* name = "";   // "ring step"; the characters stay as they are
    std::size_t number = 0;  // the first is 1; 0 where the algorithm cannot tell
    std::size_t of = 0;
    bool operator==(const Step&) const = default;
  };

  struct Snapshot {
    std::uint64_t moves = 0;             // grows with every call below
    std::uint64_t begun = 0, ended = 0;  // sums, since the start
    std::size_t bucket = 0;              // that is, or was last, summed; the first is 0
    Step step;                           // of the sum that is under way
    int peer = kNobody;                  // the rank of the job that it waits for
  };

  void begin_sum(std::size_t bucket) {
    bucket_ = bucket;
    peer_ = kNobody;
    ++begun_;
    enter({});
  }
  void enter(const Step& step) {
    step_name_ = step.name;
    step_number_ = step.number;
    steps_ = step.of;
    ++moves_;
  }
  void await(int peer) {
    peer_ = peer;
    ++moves_;
  }
  void end_sum() {
    ++ended_;
    ++moves_;
  }

  Snapshot look() const { return {moves_, begun_, ended_, bucket_, {step_name_, step_number_, steps_}, peer_}; }

 private:
  Relaxed<std::uint64_t> moves_, begun_, ended_;
  Relaxed<std::size_t> bucket_;
  Relaxed<const char*> step_name_{""};
  Relaxed<std::size_t> step_number_, steps_;
  Relaxed<int> peer_{kNobody};
};

}  // namespace annulus
