#include "src/step/step_clock.h"

#include <utility>

namespace annulus {

void StepClock::loaded(const Mark& mark) {
  step_.loaded = mark;
  passes_ = true;
}

void StepClock::computed() {
  step_.computed = device_.mark();
  passes_ = false;
}

void StepClock::end(std::size_t steps) {
  step_.ended = device_.mark();
  step_.steps = steps;
  step_.open = true;
  note_spans();
  std::swap(step_, last_step_);
}

void StepClock::wait_for(GradientBuckets& buckets, std::size_t bucket, std::size_t last) {
  activity_.enter(Activity::Phase::waiting_for_bucket, bucket);
  const LaneSpan waiting = span("wait for bucket", static_cast<std::int64_t>(bucket + 1));
  if (bucket == 0)
    buckets.wait(bucket);
  else
    buckets.join(bucket);
  GradientBuckets::Times times = buckets.times(bucket);
  times.ready = buckets.times(last).ready;
  add_wait(times);
}

void StepClock::settle_last() {
  settle(last_step_);
}

void StepClock::finish(const Interval& finishing) {
  device_.finish();
  settle(last_step_);
  note_spans();
  settle(step_);
  ledger_.add_between_steps(seconds(finishing));
}

void StepClock::end_part() {
  note_spans();
  book(last_part_, step_);
  std::swap(last_part_, static_cast<Marks&>(step_));
}

void StepClock::end_parts() {
  book(last_part_, step_);
}

void StepClock::discard() {
  step_ = last_step_ = {};
  last_part_ = {};
  passes_ = false;
}

void StepClock::settle(StepMarks& step) {
  book(step, step);
  const double interrupted = std::exchange(step.interrupted_seconds, 0.0);
  const double neighbours = std::exchange(step.neighbours_seconds, 0.0);
  if (!std::exchange(step.open, false)) return;
  const double begun = device_.seconds(step.begun), loaded = device_.seconds(step.loaded),
               computed = device_.seconds(step.computed);
  own_seconds_ = computed - begun - neighbours;
  ledger_.add(StepTimes::input, loaded - begun);
  ledger_.add(StepTimes::compute, computed - loaded - interrupted);
  if (reduces_ && meets_) ledger_.add_arrival(computed);
  ledger_.end_step(device_.seconds(step.ended) - begun, step.steps);
}

void StepClock::book(Marks& marks, StepMarks& step) {
  for (const Marks::Named& named : marks.intervals) book(named.kind, seconds(named.interval), step);
  for (const GradientBuckets::Times& wait : marks.waits)
    ledger_.add_wait(device_.seconds(wait.ready), device_.seconds(wait.wait_begin), device_.seconds(wait.wait_end));
  if (lane_ != nullptr) resolve(device_, *lane_, marks.spans);
  marks.intervals.clear();  // which keeps the memory
  marks.waits.clear();
}

void StepClock::book(Kind kind, double seconds, StepMarks& step) {
  switch (kind) {
    case Kind::interruption:
      step.interrupted_seconds += seconds;
      break;
    case Kind::optimizer:
      ledger_.add(StepTimes::optimizer, seconds);
      break;
    case Kind::norms:
      ledger_.add(StepTimes::optimizer, -seconds);
      break;
    case Kind::neighbours:
      ledger_.add(StepTimes::waiting_for_slower_ranks, seconds);
      step.neighbours_seconds += seconds;
      break;
    case Kind::transfers:
      ledger_.add(StepTimes::exposed_communication, seconds);
      break;
  }
}

}  // namespace annulus
