#pragma once

#include <cublasLt.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/vendor/cudnn_choice.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// Chooses matrix products' algorithms by times in a tuning file, beside convolutions' plans. Measures and adds what the
// file lacks.
class MatmulTuner {
 public:
  MatmulTuner(const std::filesystem::path& file, std::shared_ptr<TuningBudget> budget);

  // `run` enqueues the product with an algorithm.
  using Algorithm = cublasLtMatmulHeuristicResult_t;
  using Run = std::function<void(const Algorithm&, const MatmulOperands&, void* workspace, cudaStream_t)>;

  // Returns the fastest of the algorithms, which are not empty (see TunedChoice). `name`: the problem's, in the file.
  Algorithm fastest(const MatmulProblem& problem, const std::string& name, const std::vector<Algorithm>& algorithms,
                    const Run& run);

 private:
  TunedChoice choice_;
};

}  // namespace annulus::cuda
