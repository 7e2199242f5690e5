#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/base/clock.h"
#include "kernels/base/relaxed.h"

namespace annulus {

// The timeline of a lane: spans, in the order of their ends. Memory is allocated at the start, so recording allocates
// nothing; spans that do not fit are counted and dropped. One thread at a time may add spans; another thread may call
// record().
class TraceLane {
 public:
  struct Span {
    std::string_view name;
    std::int64_t number;  // of a bucket or an epoch; or kNone
    std::int64_t step;    // the training step when the span began; or kNone
    double begin, end;    // in now_seconds()
    // Marks in a device's lane whose times are not known yet; 0: none. See resolve().
    std::uint64_t begin_mark = 0, end_mark = 0;
  };
  static constexpr std::int64_t kNone = -1;

  explicit TraceLane(std::size_t capacity) { spans_.reserve(capacity); }

  void record(bool on, std::int64_t step = kNone) {
    recording_ = on;
    step_ = step;
  }
  bool recording() const { return recording_; }
  std::int64_t step() const { return step_; }

  void add(const Span& span) {
    if (spans_.size() < spans_.capacity())
      spans_.push_back(span);
    else
      ++dropped_;
  }

  // Fills in the first `count` spans' times from their marks.
  template <class SecondsOf>
  void resolve(std::size_t count, const SecondsOf& seconds_of) {
    for (; resolved_ < count; ++resolved_) {
      Span& span = spans_[resolved_];
      if (span.begin_mark > 0) span.begin = seconds_of(span.begin_mark);
      if (span.end_mark > 0) span.end = seconds_of(span.end_mark);
    }
  }

  const std::vector<Span>& spans() const { return spans_; }
  std::size_t dropped() const { return dropped_; }

 private:
  Relaxed<bool> recording_{false};  // set by the thread that runs the steps, read by the thread that records
  Relaxed<std::int64_t> step_{kNone};
  std::vector<Span> spans_;
  std::size_t dropped_ = 0;
  std::size_t resolved_ = 0;
};

// Adds a span to a lane, from here (or an earlier `begin`, in now_seconds()) to the end of the scope. Spans nest as
// scopes do. If `lane` is null or does not record, a span costs a single comparison.
class TraceSpan {
 public:
  // REQUIRES: the characters in `name` outlive all uses of the lane.
  TraceSpan(TraceLane* lane, std::string_view name, std::int64_t number = TraceLane::kNone) : TraceSpan(lane) {
    if (lane_ != nullptr) span_ = {name, number, lane_->step(), now_seconds(), 0};
  }
  TraceSpan(TraceLane* lane, std::string_view name, std::int64_t number, double begin) : TraceSpan(lane) {
    if (lane_ != nullptr) span_ = {name, number, lane_->step(), begin, 0};
  }
  ~TraceSpan() {
    if (lane_ == nullptr) return;
    span_.end = now_seconds();
    lane_->add(span_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  explicit TraceSpan(TraceLane* lane) : lane_(lane != nullptr && lane->recording() ? lane : nullptr) {}

  TraceLane* const lane_;
  TraceLane::Span span_;
};

}  // namespace annulus
