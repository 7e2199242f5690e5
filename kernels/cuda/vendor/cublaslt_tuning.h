#pragma once

#include <cublasLt.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/vendor/cudnn_tuning.h"
#include "kernels/cuda/vendor/matmul.h"

namespace annulus::cuda {

// Chooses matrix products' algorithms by times in a tuning file, beside convolutions' plans. Measures and adds what the
// file lacks.
class MatmulTuner {
 public:
  explicit MatmulTuner(const std::filesystem::path& file);

  // `run` enqueues the product with an algorithm.
  using Algorithm = cublasLtMatmulHeuristicResult_t;
  using Run = std::function<void(const Algorithm&, const MatmulOperands&, void* workspace, cudaStream_t)>;

  // Returns the fastest of the algorithms, which are not empty. `name`: the problem's, in the file. Throws Error if the
  // file's choice is not among them, or if none can be measured.
  Algorithm fastest(const MatmulProblem& problem, const std::string& name, const std::vector<Algorithm>& algorithms,
                    const Run& run);

 private:
  Algorithm measure(const MatmulProblem& problem, const std::string& name, const std::vector<Algorithm>& algorithms,
                    const Run& run);

  ConvolutionTuning file_;
};

}  // namespace annulus::cuda
