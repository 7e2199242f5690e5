#pragma once

#include <span>
#include <vector>

#include "kernels/base/host_memory.h"
#include "kernels/update.h"

namespace annulus::cpu {

// Replaces matrices by nearly orthogonal ones: by U V^T, where U S V^T is the singular value decomposition. Results
// have the same bits on any number of threads.
class Orthogonalizer {
 public:
  explicit Orthogonalizer(const Muon& rule) : steps_(orthogonalizing_steps(rule)) {}

  // `matrix`: row-major. Zeros do not change.
  void run(std::span<float> matrix, const MatrixSize& size);

 private:
  // Returns what these steps multiply X by, an n x n matrix. Overwrites squared_, which holds X X^T.
  const float* product_of_steps(std::size_t begin, std::size_t end, std::size_t n);

  const std::vector<OrthogonalizingStep> steps_;
  HostArray<float> next_, squared_, polynomial_, product_, spare_;
};

}  // namespace annulus::cpu
