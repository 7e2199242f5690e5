#pragma once

#include "kernels/cpu/plan/dnnl_pass.h"

namespace annulus::cpu {

// Plans y = x W^T + b for row-major x {rows, features}, W {units, features}, y {rows, units} and, if `bias`, b {units}.
// The pass's tensors are x, y, W and b.
DnnlPass plan_linear_forward(std::size_t rows, std::size_t features, std::size_t units, bool bias);

}  // namespace annulus::cpu
