#pragma once

#include "collectives/gpu/make_gpu_all_reduce.h"

namespace annulus {

// What the CUDA module (kernels/cuda/module.h) exports from this folder, "annulus_cuda_collectives".
struct CudaCollectives {
  decltype(&make_gpu_all_reduce) make;
};

}  // namespace annulus
