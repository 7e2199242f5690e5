#pragma once

#include <cstdint>

#include "kernels/base/clock.h"

namespace annulus {

// A position in a lane of work. Its time is the moment when the work before it is done.
struct Mark {
  double seconds = 0;        // in now_seconds(), if already known
  std::uint64_t number = 0;  // otherwise the mark's number, from 1
};

// A queue of work that is done in order, either immediately or later.
class Lane {
 public:
  virtual ~Lane() = default;

  // The defaults are for a lane whose work is done when the call that enqueues it returns.
  virtual Mark mark() { return {now_seconds(), 0}; }
  // Returns the time of a mark, after waiting for it. REQUIRES: it is one of the last 10,000 or so.
  virtual double seconds(const Mark& mark) { return mark.seconds; }
  // Returns the mark with its time, after waiting for it, so that it is known from now on.
  Mark timed(const Mark& mark) { return {seconds(mark), 0}; }
};

}  // namespace annulus
