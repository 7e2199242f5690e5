#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "collectives/world/all_reduce_progress.h"

namespace annulus {

// How a thread waits for other ranks. It can only look again and again, and it often shares its core: with the
// computation that the communication is meant to hide behind, or, where ranks outnumber cores, with the very rank that
// it waits for. So it looks without rest only for a moment, and only while somebody does nothing but wait for it.
//
// One thread waits at a time, with pause(); another one may say how.
class Backoff {
 public:
  // `looks`: how often to look before giving the core away. See looks_on_this_node().
  explicit Backoff(int looks) : looks_(looks) {}

  void set_urgent(bool urgent);  // ends a nap
  void abandon();                // from now on waiting throws Error

  // Between two looks; `looks` of this wait were in vain so far.
  void pause(int looks);

  // For those who can sleep until they are woken (shared_counter.h): rests for a moment between two looks, or returns
  // false if it is time to sleep.
  bool rest_before_sleep(int looks) const;
  void expect_not_abandoned() const;  // throws Error where it was

  // For whom it is waited, told by whoever waits.
  AllReduceProgress& activity() { return activity_; }

 private:
  void rest(int looks) const;

  const int looks_;
  AllReduceProgress activity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> urgent_ = false;
  std::atomic<bool> abandoned_ = false;
};

// Some 50 us of looking where every rank of a node has a core; nearly none where they must share.
int looks_on_this_node(int ranks);

}  // namespace annulus
