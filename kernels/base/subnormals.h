#pragma once

#include <immintrin.h>

namespace annulus {

// Annulus computes with subnormal numbers (float32: below 2^-126) as zeros. The momentum of a weight that no longer
// gets gradients decays into them, and some processors need a hundred cycles or more per operation on a subnormal. No
// result is that small otherwise.
//
// This is a thread's mode, inherited from the thread that starts it. So main() sets it before it starts other threads;
// some library may change it later.

// Sets this thread's mode.
inline void flush_subnormals() {
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);          // results
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);  // operands
}

// Returns whether this thread is in that mode.
inline bool flushes_subnormals() {
  return _MM_GET_FLUSH_ZERO_MODE() == _MM_FLUSH_ZERO_ON && _MM_GET_DENORMALS_ZERO_MODE() == _MM_DENORMALS_ZERO_ON;
}

// Throws Error if this thread, or an OpenMP thread that it computes with (oneDNN's too), is not in that mode.
void expect_flushed_subnormals();

}  // namespace annulus
