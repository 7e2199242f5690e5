#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "kernels/precision.h"

namespace annulus::cuda {

// output {rows, columns} = a {rows, inner} b {inner, columns}, row-major; each of a and b may be transposed in memory.
// The factors have the precision's value type; sums are computed in float32. The length of rows in memory is a multiple
// of the number of values that 16 bytes hold. The batch is never along them, so it may have any size.
struct MatmulProblem {
  Precision precision;
  std::size_t rows, columns, inner;
  bool a_transposed = false;  // stored as {inner, rows}
  bool b_transposed = false;  // stored as {columns, inner}
  bool bias = false;          // adds a float32 to each column, rounded to the output's type
  bool relu = false;          // after that
  bool wide_output = false;   // output is float32 in any precision
  bool accumulate = false;    // adds to the output instead of overwriting it
  std::size_t count = 1;      // products, of matrices that follow each other in memory
  std::size_t a_row = 0;      // the length of a's rows in memory; 0: without padding. The same for the output's.
  std::size_t output_row = 0;

  // The length of rows in memory.
  std::size_t a_length() const { return a_row > 0 ? a_row : a_transposed ? rows : inner; }
  std::size_t b_length() const { return b_transposed ? inner : columns; }
  std::size_t output_length() const { return output_row > 0 ? output_row : columns; }
};

class Matmul {
 public:
  virtual ~Matmul() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // All pointers are to device memory, aligned to 16 bytes. `bias` may be null if the problem has none. `factor`, if
  // not null, multiplies the product; it is supported only without bias and ReLU. Returns immediately; the work is done
  // in the stream. Results are bit-identical from run to run.
  virtual void run(const void* a, const void* b, const float* bias, void* output, const float* factor, void* workspace,
                   cudaStream_t stream) = 0;
};

class MatmulPlanner {
 public:
  virtual ~MatmulPlanner() = default;
  virtual std::unique_ptr<Matmul> plan(const MatmulProblem& problem) = 0;  // throws Error if there is none
};

std::unique_ptr<MatmulPlanner> make_matmul_planner();  // for the current device

}  // namespace annulus::cuda
