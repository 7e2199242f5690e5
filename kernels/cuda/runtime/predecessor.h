#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// To be called by every thread of a kernel that takes a Predecessor, before anything else. When it returns, all earlier
// kernels in the stream have ended, and their writes are visible. (A kernel that ended without this call would not make
// later kernels wait for earlier kernels.) When all blocks have called it, the next kernel's blocks may start as this
// kernel's blocks end.
__device__ inline void await(Predecessor) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace annulus::cuda
