#pragma once

#include <cstdint>

#include "kernels/base/clock.h"

namespace annulus {

// A position in a lane. Its time is the moment when the work before it is done.
struct Mark {
  double seconds = 0;        // in now_seconds(), if already known
  std::uint64_t number = 0;  // otherwise the mark's number, from 1
};

// A queue that does work in order, either immediately or later.
class Lane {
 public:
  virtual ~Lane() = default;

  // The defaults are for a lane whose work is done when the enqueuing call returns.
  virtual Mark mark() { return {now_seconds(), 0}; }
  // Waits for a mark and returns its time. REQUIRES: it is among the last 10,000 marks or so.
  virtual double seconds(const Mark& mark) { return mark.seconds; }
  // Waits for a mark and returns it with the time, which is thus known from now on.
  Mark timed(const Mark& mark) { return {seconds(mark), 0}; }
};

}  // namespace annulus
