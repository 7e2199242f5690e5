#pragma once

#include <filesystem>

#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// Makes a planner for the current device. Chooses algorithms by the library's heuristics or, if `tuning` names a file,
// by measurements: measures problems missing in the file once, with their epilogues, and adds them.
std::unique_ptr<MatmulPlanner> make_matmul_planner(const std::filesystem::path& tuning);

}  // namespace annulus::cuda
