#pragma once

#include <memory>
#include <span>

#include "kernels/update.h"

namespace annulus::cpu {

// Replaces matrices by nearly orthogonal ones: by U V^T, where U S V^T is the singular value decomposition. Results
// have the same bits on any number of threads.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;

  // `matrix`: row-major. Zeros do not change.
  virtual void run(std::span<float> matrix, const MatrixSize& size) = 0;
};

// Makes the faster orthogonalizer for this processor. AMX rounds factors to bf16 (tile_orthogonalizer.h).
std::unique_ptr<Orthogonalizer> make_orthogonalizer(const Muon& rule);

std::unique_ptr<Orthogonalizer> make_float32_orthogonalizer(const Muon& rule);

// The factor that gives a matrix the Frobenius norm 1.
float norm_factor(std::span<const float> matrix);

}  // namespace annulus::cpu
