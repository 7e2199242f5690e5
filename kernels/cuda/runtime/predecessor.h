#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {

// To be called by every thread of a kernel that takes a Predecessor, before anything else. Afterwards all kernels
// before it in the stream have ended, and what they have written is visible. (If a kernel could end without that, those
// after it would not wait for the ones before it.) As soon as all of its blocks have called it, the next kernel's
// blocks may take the places of those that end.
__device__ inline void await(Predecessor) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

}  // namespace annulus::cuda
