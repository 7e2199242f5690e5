#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "kernels/precision.h"

namespace annulus::cuda {

// output {rows, columns} = a {rows, inner} b {inner, columns}, row-major and dense; each of a and b may lie transposed
// in memory. The factors are of the precision's value type, sums are made in float32. Rows in memory have multiples of
// what 16 bytes hold; so the batch, which is never along them, may be of any size.
struct MatmulProblem {
  Precision precision;
  std::size_t rows, columns, inner;
  bool a_transposed = false;  // it lies there as {inner, rows}
  bool b_transposed = false;  // as {columns, inner}
  bool bias = false;          // adds a float32 for each column, rounded to the output's type
  bool relu = false;          // after that
  bool wide_output = false;   // output is float32 whatever the precision
  bool accumulate = false;    // adds to what lies in the output
};

class Matmul {
 public:
  virtual ~Matmul() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Device memory, aligned to 16 bytes; `bias` may be null where the problem has none. `factor` lies in device memory
  // and multiplies the product, where there is neither bias nor ReLU; null means 1. Returns at once; the work goes on
  // in the stream. The same bits each time.
  virtual void run(const void* a, const void* b, const float* bias, void* output, const float* factor, void* workspace,
                   cudaStream_t stream) = 0;
};

class MatmulPlanner {
 public:
  virtual ~MatmulPlanner() = default;
  virtual std::unique_ptr<Matmul> plan(const MatmulProblem& problem) = 0;  // throws Error where there is none
};

std::unique_ptr<MatmulPlanner> make_matmul_planner();  // for the device that is current

}  // namespace annulus::cuda
