#pragma once

#include "kernels/base/lane.h"
#include "kernels/base/trace.h"

namespace annulus {

// Like TraceSpan, but for a lane's work: the times are when the work is done, which may be later. resolve() fills them
// in.
class LaneSpan {
 public:
  LaneSpan(Lane& work, TraceLane* lane, std::string_view name, std::int64_t number = TraceLane::kNone)
      : LaneSpan(work, lane, name, number, {}) {
    if (lane_ != nullptr) begin_ = work_.mark();
  }
  // Begins at an earlier mark on the lane.
  LaneSpan(Lane& work, TraceLane* lane, std::string_view name, std::int64_t number, const Mark& begin)
      : work_(work),
        lane_(lane != nullptr && lane->recording() ? lane : nullptr),
        name_(name),
        number_(number),
        begin_(begin) {}
  ~LaneSpan() {
    if (lane_ == nullptr) return;
    const Mark end = work_.mark();
    lane_->add({name_, number_, lane_->step(), begin_.seconds, end.seconds, begin_.number, end.number});
  }
  LaneSpan(const LaneSpan&) = delete;
  LaneSpan& operator=(const LaneSpan&) = delete;

 private:
  Lane& work_;
  TraceLane* const lane_;
  std::string_view name_;
  std::int64_t number_;
  Mark begin_;
};

// Waits for the work in the first `count` spans, and fills in their times.
inline void resolve(Lane& work, TraceLane& lane, std::size_t count) {
  lane.resolve(count, [&work](std::uint64_t number) { return work.seconds({0, number}); });
}

}  // namespace annulus
