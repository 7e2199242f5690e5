#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "collectives/gradient_buckets.h"
#include "kernels/base/lane_span.h"
#include "kernels/base/trace.h"
#include "kernels/device.h"
#include "src/job/activity.h"
#include "src/step/ledger.h"

namespace annulus {

// Marks in, times out. A step marks the device's lane and names the time between two marks; once the lane has passed
// them, the times are booked in the ledger and filled into the timeline. A GPU passes a mark long after it was set, so
// a step's times are booked during the next step.
class StepClock {
 public:
  struct Interval {
    Mark begin, end;
  };
  // How the ledger books an interval.
  enum class Kind {
    interruption,  // of the passes: not as computing
    optimizer,
    norms,       // waits for the ranks' norms, not counted as the optimizer
    neighbours,  // waits for other ranks that are no all-reduce
    transfers    // of weights and gradients by the passes' thread
  };

  // `lane`: of the timeline; null: none. `reduces`: see AllReduceInfo. `meets`: other ranks have the same parameters,
  // so their gradients arrive earlier or later than this rank's.
  StepClock(Device& device, Ledger& ledger, Activity& activity, TraceLane* lane, bool reduces, bool meets)
      : device_(device), ledger_(ledger), activity_(activity), lane_(lane), reduces_(reduces), meets_(meets) {}

  // A step calls these in this order.
  void begin(const Mark& begun) { step_.begun = begun; }
  void loaded(const Mark& mark);           // the passes follow
  void computed();                         // the passes are done
  void end(std::size_t steps);             // `steps`: as which it counts
  void settle_last();                      // books the step that ended last, if it was not
  void finish(const Interval& finishing);  // waits for the device, and books all; `finishing` was between two steps
  // Within a long step: books what came before the last call of this. So only the marks of two parts are kept.
  void end_part();
  void end_parts();  // books the last part
  void discard();    // forgets all marks: a step was interrupted

  // Adds an interval of the current step, or of its updates that an earlier one left.
  void add(Kind kind, const Interval& interval) { step_.intervals.push_back({kind, interval}); }
  void add_wait(const GradientBuckets::Times& wait) {
    if (reduces_) step_.waits.push_back(wait);
  }
  template <class Work>
  Interval time(const Work& work) {
    const Mark begin = device_.mark();
    work();
    return {begin, device_.mark()};
  }
  template <class Work>
  void time(Kind kind, const Work& work) {
    add(kind, time(work));
  }
  // Waits for a bucket's all-reduce: for the first one until this thread can read the step's metrics, for others until
  // the lane can continue. `last`: the last bucket that the step sends. Even with zero-cost communication the step must
  // wait for the slowest rank's gradients of it, for this bucket or for a later one.
  void wait_for(GradientBuckets& buckets, std::size_t bucket, std::size_t last);
  // Waits for an all-reduce that is not a bucket's.
  template <class Wait>
  Interval wait_within_pass(const Wait& wait) {
    const Activity::Phase before = activity_.snapshot().phase;
    activity_.enter(Activity::Phase::waiting_within_pass);
    const Interval waited = time(wait);
    activity_.enter(before);
    add_wait({waited.begin, waited.begin, waited.end});
    return waited;
  }
  // Waits for something else of other ranks. Booked within the passes only.
  template <class Wait>
  void wait(Activity::Phase phase, std::string_view name, const Wait& wait) {
    const Activity::Phase before = activity_.snapshot().phase;
    activity_.enter(phase);
    const LaneSpan span(device_, passes_ ? lane_ : nullptr, name);
    const Interval waited = time(wait);
    activity_.enter(before);
    if (!passes_) return;
    add(Kind::neighbours, waited);
    add(Kind::interruption, waited);
  }
  // Does work of the passes that is no computing.
  template <class Work>
  void work(Activity::Phase phase, Kind kind, const Work& work) {
    activity_.enter(phase);
    const Interval worked = time(work);
    add(kind, worked);
    add(Kind::interruption, worked);
  }

  LaneSpan span(std::string_view name, std::int64_t number = TraceLane::kNone) const {
    return LaneSpan(device_, lane_, name, number);
  }
  LaneSpan span_from(const Mark& begin, std::string_view name, std::int64_t number = TraceLane::kNone) const {
    return LaneSpan(device_, lane_, name, number, begin);
  }
  LaneSpan span_of_step(std::string_view name) const { return span_from(step_.begun, name); }
  Activity& activity() const { return activity_; }

  // Returns how long this rank took for its own part of the last step: until it had nothing left but to wait for other
  // ranks. REQUIRES: the step has been booked.
  double own_seconds() const { return own_seconds_; }

 private:
  struct Marks {
    struct Named {
      Kind kind;
      Interval interval;
    };
    std::vector<Named> intervals;
    std::vector<GradientBuckets::Times> waits;
    std::size_t spans = 0;  // number in the timeline's lane
  };
  struct StepMarks : Marks {
    bool open = false;
    Mark begun, loaded, computed, ended;
    std::size_t steps = 1;
    double interrupted_seconds = 0, neighbours_seconds = 0;  // of the times booked so far
  };

  double seconds(const Interval& interval) { return device_.seconds(interval.end) - device_.seconds(interval.begin); }
  void note_spans() {
    if (lane_ != nullptr) step_.spans = lane_->spans().size();
  }
  void settle(StepMarks& step);
  void book(Marks& marks, StepMarks& step);
  void book(Kind kind, double seconds, StepMarks& step);

  Device& device_;
  Ledger& ledger_;
  Activity& activity_;
  TraceLane* const lane_;
  const bool reduces_, meets_;
  bool passes_ = false;  // the current step is in forward or backward
  double own_seconds_ = 0;
  StepMarks step_, last_step_;
  Marks last_part_;
};

}  // namespace annulus
