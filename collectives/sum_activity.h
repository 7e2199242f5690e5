#pragma once

#include <atomic>
#include <cstdint>

namespace annulus {

// How far an all-reduce has come, for a watchdog. Written by the thread that adds, one at a time, and read by another
// one, however the first is stuck: relaxed atomics, as in src/activity.h.
class SumActivity {
 public:
  static constexpr int kNobody = -1;

  struct Snapshot {
    std::uint64_t moves = 0;             // grows with every call below
    std::uint64_t begun = 0, ended = 0;  // sums, since the start
    std::uint64_t exchange = 0;          // of the sum that is under way, the first is 1; 0 where it cannot tell
    int peer = kNobody;                  // the rank of the job that this exchange waits for
  };

  void begin_sum() {
    set(exchange_, std::uint64_t{0});
    set(peer_, kNobody);
    increment(begun_);
    increment(moves_);
  }
  void await(int peer) {  // the next exchange
    set(peer_, peer);
    increment(exchange_);
    increment(moves_);
  }
  void end_sum() {
    increment(ended_);
    increment(moves_);
  }

  Snapshot look() const { return {get(moves_), get(begun_), get(ended_), get(exchange_), get(peer_)}; }

 private:
  template <class T>
  static T get(const std::atomic<T>& value) {
    return value.load(std::memory_order_relaxed);
  }
  template <class T>
  static void set(std::atomic<T>& value, T to) {
    value.store(to, std::memory_order_relaxed);
  }
  static void increment(std::atomic<std::uint64_t>& counter) {
    set(counter, get(counter) + 1);
  }  // one writer at a time

  std::atomic<std::uint64_t> moves_ = 0, begun_ = 0, ended_ = 0, exchange_ = 0;
  std::atomic<int> peer_ = kNobody;
};

}  // namespace annulus
