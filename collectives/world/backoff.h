#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace annulus {

// Controls how a thread waits for other ranks. It can only poll, and it often shares a core: with the computation that
// is to hide the communication, or, if ranks outnumber cores, with the awaited rank. So it polls without pausing only
// for a moment, and only while a caller is blocked on the result. On a busy machine a thread that went on to yield the
// core would use up the processor time of the job: there exchanges between nodes took seconds instead of 0.2 s.
//
// One thread at a time waits, in pause(); other threads may call set_urgent() and abandon().
class Backoff {
 public:
  // `polls`: polls before yielding the core. See polls_on_this_node(). `interruption`: see World::interruption().
  explicit Backoff(int polls, std::shared_ptr<const std::atomic<bool>> interruption = {})
      : polls_(polls), interruption_(std::move(interruption)) {}

  void set_urgent(bool urgent);  // true ends a nap
  void abandon();                // from now on all waits throw Error, until resume()
  void resume() { abandoned_ = false; }

  // Call between two polls; `polls` counts this wait's polls so far.
  void pause(int polls);

  // For waits that can sleep until they are woken (shared_counter.h): pauses for a moment between two polls, or returns
  // false if it is time to sleep.
  bool rest_before_sleep(int polls) const;
  void expect_not_abandoned() const;  // throws Error if it was abandoned or interrupted

 private:
  void rest(int polls) const;
  bool spins(int polls) const;  // or naps

  const int polls_;
  const std::shared_ptr<const std::atomic<bool>> interruption_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> urgent_ = false;
  std::atomic<bool> abandoned_ = false;
  std::chrono::steady_clock::time_point began_;  // this wait
};

// Returns the number of polls for about 50 us if every rank on a node has a core; close to 0 if ranks share cores.
int polls_on_this_node(int ranks);

}  // namespace annulus
