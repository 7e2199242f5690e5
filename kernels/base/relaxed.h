#pragma once

#include <atomic>

namespace annulus {

// A number that one thread at a time writes and any other thread may read, even if the writer hangs: there is no lock,
// and a write costs only a store. A thread that reads several such numbers may see newer and older ones.
template <class T>
class Relaxed {
 public:
  explicit Relaxed(T value = {}) : value_(value) {}

  operator T() const { return value_.load(std::memory_order_relaxed); }
  void operator=(T value) { value_.store(value, std::memory_order_relaxed); }
  void operator++() { *this = *this + 1; }  // a single writer, so no fetch_add

 private:
  std::atomic<T> value_;
};

}  // namespace annulus
