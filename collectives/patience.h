#pragma once

#include <atomic>

namespace annulus {

// How a communication thread waits for the wire. A message can only be waited for by looking again and again, and the
// thread often shares its core with the computation that it is meant to hide behind. So it looks without rest only
// while somebody does nothing but wait for it, and sleeps between looks otherwise.
//
// One thread waits with pause(); another one sets how.
class Patience {
 public:
  explicit Patience(bool crowded) : crowded_(crowded) {}  // crowded: more ranks than cores on this node

  void set_urgent(bool urgent) { urgent_.store(urgent, std::memory_order_relaxed); }
  void abandon() { abandoned_.store(true, std::memory_order_relaxed); }  // from now on pause() throws Error

  void pause() const;  // to be called between two looks

 private:
  bool crowded_;
  std::atomic<bool> urgent_ = false;
  std::atomic<bool> abandoned_ = false;
};

}  // namespace annulus
