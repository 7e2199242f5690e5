#include "kernels/cuda/vendor/matmul.h"

#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/values.h"

// Replaces cuBLASLt's matrix products by direct ones.

namespace annulus::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = 4096;  // not needed, but overwritten, to detect users of stale data

DataType output_type(const MatmulProblem& problem) {
  return problem.wide_output ? DataType::f32 : value_type(problem.precision);
}

// {rows, columns} that may lie there as {columns, rows}.
std::vector<float> load_matrix(const void* from, std::size_t rows, std::size_t columns, bool transposed,
                               Precision precision) {
  std::vector<float> values = emulated::load_factors(from, rows * columns, precision);
  if (!transposed) return values;
  std::vector<float> turned(values.size());
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j) turned[i * columns + j] = values[j * rows + i];
  return turned;
}

std::vector<float> product(const MatmulProblem& p, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sums(p.rows * p.columns);
  for (std::size_t i = 0; i < p.rows; ++i)
    for (std::size_t k = 0; k < p.inner; ++k)
      for (std::size_t j = 0; j < p.columns; ++j) sums[i * p.columns + j] += a[i * p.inner + k] * b[k * p.columns + j];
  return sums;
}

void compute(const MatmulProblem& p, const void* a, const void* b, const float* bias, void* output,
             const float* factor) {
  std::vector<float> values = product(p, load_matrix(a, p.rows, p.inner, p.a_transposed, p.precision),
                                      load_matrix(b, p.inner, p.columns, p.b_transposed, p.precision));
  std::vector<float> old(values.size());
  if (p.accumulate) old = emulated::load(output, old.size(), output_type(p));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (factor != nullptr) values[i] *= *factor;
    values[i] += old[i];
    if (p.bias) values[i] += bias[i % p.columns];
    if (p.relu && values[i] < 0) values[i] = 0;
  }
  emulated::store(values, output, output_type(p));
}

class EmulatedMatmul final : public Matmul {
 public:
  explicit EmulatedMatmul(const MatmulProblem& problem) : problem_(problem) {}

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }

  void run(const void* a, const void* b, const float* bias, void* output, const float* factor, void* workspace,
           cudaStream_t stream) override {
    const MatmulProblem& p = problem_;
    const std::size_t bytes = size_of(value_type(p.precision));
    emulated::check_operand("a product's first factor", a, p.rows * p.inner, bytes);
    emulated::check_operand("a product's second factor", b, p.inner * p.columns, bytes);
    emulated::check_operand("a product", output, p.rows * p.columns, size_of(output_type(p)));
    emulated::check_operand("a product's workspace", workspace, kWorkspaceBytes, 1);
    if (p.bias) emulated::check_operand("a product's bias", bias, p.columns, sizeof(float));
    if (factor != nullptr && !emulated::device_reaches(factor, sizeof(float)))
      fail("a product's factor at {} is not a device's memory", fmt::ptr(factor));
    check(emulated::enqueue(stream, [=] {
      std::memset(workspace, 0xff, kWorkspaceBytes);
      compute(p, a, b, bias, output, factor);
    }));
  }

 private:
  MatmulProblem problem_;
};

class EmulatedMatmuls final : public MatmulPlanner {
 public:
  std::unique_ptr<Matmul> plan(const MatmulProblem& p) override {
    emulated::check_multiple("values in a row of a product", p.columns, p.precision);
    emulated::check_multiple("values in a row of the first factor", p.a_transposed ? p.rows : p.inner, p.precision);
    emulated::check_multiple("values in a row of the second factor", p.b_transposed ? p.inner : p.columns, p.precision);
    return std::make_unique<EmulatedMatmul>(p);
  }
};

}  // namespace

std::unique_ptr<MatmulPlanner> make_matmul_planner() {
  return std::make_unique<EmulatedMatmuls>();
}

}  // namespace annulus::cuda
