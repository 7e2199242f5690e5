#include "kernels/cuda/module.h"

extern "C" {
extern const annulus::CudaKernels annulus_cuda_kernels;
const annulus::CudaKernels annulus_cuda_kernels{
    ANNULUS_CUDA_INTERFACE,     annulus::why_no_gpu,      annulus::gpus_here,  annulus::gpu_name,
    annulus::use_gpu,           annulus::gpu_memory,      annulus::gpu_joules, annulus::product_flops_per_second,
    annulus::make_jpeg_decoder, annulus::make_cuda_device};
}
