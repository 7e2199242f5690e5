#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "kernels/precision.h"

namespace annulus::cuda {

// Describes output {rows, columns} = a {rows, inner} b {inner, columns}, row-major; a and b may be transposed in
// memory. a and b have the precision's value type; sums are computed in float32. Row lengths in memory are multiples of
// the number of values that 16 bytes hold. The batch never lies along a row, so it may have any size.
struct MatmulProblem {
  // The function applied to a sum x, in the library's epilogue. GELU is Activation::Function::gelu_tanh.
  enum class Function {
    none,
    relu,            // max(0, x)
    gelu,            // GELU(x)
    gelu_and_input,  // GELU(x), and x to MatmulOperands::gelu_input
    gelu_backward,   // x GELU'(gelu_input)
  };

  Precision precision;
  std::size_t rows, columns, inner;
  bool a_transposed = false;  // stored as {inner, rows}
  bool b_transposed = false;  // stored as {columns, inner}
  bool bias = false;          // adds a number to each column
  Function function = Function::none;
  bool wide_output = false;  // output is float32 in any precision
  bool accumulate = false;   // adds to the output instead of overwriting it
  std::size_t count = 1;     // products; their matrices follow each other in memory
  std::size_t a_row = 0;     // row lengths in memory, a's and the output's; 0: without padding
  std::size_t output_row = 0;

  // Return row lengths in memory.
  std::size_t a_length() const { return a_row > 0 ? a_row : a_transposed ? rows : inner; }
  std::size_t b_length() const { return b_transposed ? inner : columns; }
  std::size_t output_length() const { return output_row > 0 ? output_row : columns; }

  bool has_gelu() const { return function != Function::none && function != Function::relu; }
  bool has_gelu_input() const { return has_gelu() && function != Function::gelu; }
};

// Device memory, aligned to 16 bytes.
struct MatmulOperands {
  const void* a;
  const void* b;
  void* output;
  const void* bias = nullptr;     // if the problem has a bias: in the output's type
  void* gelu_input = nullptr;     // if has_gelu_input(): {rows, columns} in the output's type and layout
  const float* factor = nullptr;  // if not null, scales the product; supported only without bias and function
};

class Matmul {
 public:
  virtual ~Matmul() = default;

  virtual std::size_t workspace_bytes() const = 0;

  // Returns immediately; the work is done in the stream. Results are bit-identical from run to run.
  virtual void run(const MatmulOperands& operands, void* workspace, cudaStream_t stream) = 0;
};

class MatmulPlanner {
 public:
  virtual ~MatmulPlanner() = default;

  // Throws Error if the library has no algorithm for the problem. With a GELU, which our kernels can compute as well,
  // returns null instead, and also on GPUs with faster kernels of ours.
  virtual std::unique_ptr<Matmul> plan(const MatmulProblem& problem) = 0;
};

std::unique_ptr<MatmulPlanner> make_matmul_planner();  // for the current device

}  // namespace annulus::cuda
