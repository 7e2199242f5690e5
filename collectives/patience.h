#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace annulus {

// How a communication thread waits for the wire. A message can only be waited for by looking again and again, and the
// thread often shares its core with the computation that it is meant to hide behind. So it looks without rest only
// while somebody does nothing but wait for it, and naps between looks otherwise.
//
// One thread waits, with pause(); another one says how.
class Patience {
 public:
  void set_urgent(bool urgent);  // ends a nap
  void abandon();                // from now on pause() throws Error

  void pause();  // to be called between two looks

  // For those who can sleep until they are woken (signal.h): whether it is worth looking for a while first.
  bool urgent() const { return urgent_; }
  void expect_not_abandoned() const;  // throws Error where it was

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> urgent_ = false;
  std::atomic<bool> abandoned_ = false;
};

}  // namespace annulus
