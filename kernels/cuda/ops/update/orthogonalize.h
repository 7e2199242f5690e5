#pragma once

#include <compare>
#include <memory>
#include <vector>

#include "kernels/cuda/ops/loops/context.h"
#include "kernels/update.h"

namespace annulus::cuda {

// A matrix in memory, including padding: zeros, which do not change.
struct StoredMatrix {
  std::size_t rows, columns;
  bool tall;  // it has more rows than columns, without padding

  std::size_t elements() const { return rows * columns; }
  auto operator<=>(const StoredMatrix&) const = default;
};

// Replaces matrices by nearly orthogonal matrices, by cuBLASLt's products in the context's precision. There are no
// batches of matrices: ranks that share the work would have other batches, and then the library may choose other
// algorithms, with other bits.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;

  // Enqueues the work on the context's lane. Calls on different lanes need separate orthogonalizers, because each has
  // scratch memory. The matrices are float32, row-major, and may be the same. `matrix`: given to make_orthogonalizer(),
  // too.
  virtual void run(DeviceView from, DeviceView to, const StoredMatrix& matrix) = 0;
};

std::unique_ptr<Orthogonalizer> make_orthogonalizer(const Muon& rule, const std::vector<StoredMatrix>& matrices,
                                                    Context& context);

}  // namespace annulus::cuda
