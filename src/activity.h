#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace annulus {

// What the main thread of a training run is doing right now, for a watchdog (watchdog.h); the all-reduce has one of
// its own (collectives/sum_activity.h). Written where things happen and read by another thread, however this one is
// stuck: so it is made of relaxed atomics. Writing costs a store, nobody takes a lock, and a reader may see one value
// newer than another; of a rank that stands still, all of them are old.
class Activity {
 public:
  enum class Phase {
    starting,
    input,
    forward,
    backward,
    waiting_for_bucket,
    optimizer,
    evaluation,
    checkpoint,
    meeting
  };

  struct Snapshot {
    std::uint64_t moves = 0;  // grows with every call below
    std::uint64_t step = 0;   // the first is 1
    Phase phase = Phase::starting;
    std::size_t bucket = 0;   // in waiting_for_bucket and optimizer
    std::size_t buckets = 0;  // a step
  };

  // By the main thread.
  void plan(std::size_t buckets) { set(buckets_, buckets); }
  void begin_step(std::uint64_t step) {
    set(step_, step);
    enter(Phase::input);
  }
  void enter(Phase phase, std::size_t bucket = 0) {
    set(phase_, phase);
    set(bucket_, bucket);
    tick();
  }
  void tick() { set(moves_, get(moves_) + 1); }  // something within a long phase is done; one writer, so no fetch_add

  // By any thread.
  Snapshot look() const { return {get(moves_), get(step_), get(phase_), get(bucket_), get(buckets_)}; }

 private:
  template <class T>
  static T get(const std::atomic<T>& value) {
    return value.load(std::memory_order_relaxed);
  }
  template <class T>
  static void set(std::atomic<T>& value, T to) {
    value.store(to, std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> moves_ = 0, step_ = 0;
  std::atomic<Phase> phase_ = Phase::starting;
  std::atomic<std::size_t> bucket_ = 0, buckets_ = 0;
};

}  // namespace annulus
