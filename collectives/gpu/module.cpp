#include "collectives/gpu/module.h"

extern "C" {
extern const annulus::CudaCollectives annulus_cuda_collectives;
const annulus::CudaCollectives annulus_cuda_collectives{annulus::make_gpu_all_reduce};
}
