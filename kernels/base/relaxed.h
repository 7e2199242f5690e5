#pragma once

#include <atomic>

namespace annulus {

// A number that one thread at a time writes and any other may read, however the first is stuck: writing costs a store,
// and nobody takes a lock. A reader of several may see one of them newer than another.
template <class T>
class Relaxed {
 public:
  explicit Relaxed(T value = {}) : value_(value) {}

  operator T() const { return value_.load(std::memory_order_relaxed); }
  void operator=(T value) { value_.store(value, std::memory_order_relaxed); }
  void operator++() { *this = *this + 1; }  // one writer, so no fetch_add

 private:
  std::atomic<T> value_;
};

}  // namespace annulus
