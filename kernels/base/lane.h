#pragma once

#include <cstdint>

#include "kernels/base/clock.h"

namespace annulus {

// A place in a lane of work, and the moment when the work before it is done.
struct Mark {
  double seconds = 0;        // in now_seconds(), where it is known at once
  std::uint64_t number = 0;  // otherwise: from 1
};

// Work that is done in the order in which it is put here, now or later.
class Lane {
 public:
  virtual ~Lane() = default;

  // These are for a lane whose work is done when the call that puts it there returns.
  virtual Mark mark() { return {now_seconds(), 0}; }
  // Of one of the last ten thousand or so. Waits for the moment.
  virtual double seconds(const Mark& mark) { return mark.seconds; }
};

}  // namespace annulus
