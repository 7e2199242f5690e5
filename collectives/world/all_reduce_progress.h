#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/relaxed.h"

namespace annulus {

// Reports an all-reduce's progress to a watchdog. Written by the thread that runs the all-reduce, read by another. If
// the all-reduce is stuck, all fields are from the same moment.
class AllReduceProgress {
 public:
  static constexpr int kNobody = -1;

  struct Step {
    const char* name = "";   // "ring step"; a string with static lifetime
    std::size_t number = 0;  // the first is 1; 0 if unknown
    std::size_t of = 0;
    bool operator==(const Step&) const = default;
  };

  struct Snapshot {
    std::uint64_t moves = 0;             // grows with every call below
    std::uint64_t begun = 0, ended = 0;  // all-reduces, since the start
    std::size_t bucket = 0;              // of the current or last all-reduce; counted from 0
    Step step;                           // of the current all-reduce
    int peer = kNobody;                  // the rank in the job that it waits for
    std::uint64_t bytes_sent = 0;        // by this rank in completed all-reduces; 0 if unknown (MPI_Allreduce)
  };

  void begin(std::size_t bucket) {
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
  void end(std::uint64_t bytes_sent) {  // by this rank in all completed all-reduces
    bytes_sent_ = bytes_sent;
    ++ended_;
    ++moves_;
  }

  void give_up() { ended_ = std::uint64_t{begun_}; }  // the current all-reduce

  Snapshot snapshot() const {
    return {moves_, begun_, ended_, bucket_, {step_name_, step_number_, steps_}, peer_, bytes_sent_};
  }

 private:
  Relaxed<std::uint64_t> moves_, begun_, ended_, bytes_sent_;
  Relaxed<std::size_t> bucket_;
  Relaxed<const char*> step_name_{""};
  Relaxed<std::size_t> step_number_, steps_;
  Relaxed<int> peer_{kNobody};
};

}  // namespace annulus
