#pragma once

#include <string>

#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// For error messages, and as the problem's name in tuning files.
std::string to_string(const MatmulProblem& problem);

void require_sound(const MatmulProblem& problem);  // throws Error

}  // namespace annulus::cuda
