#include "kernels/cuda/vendor/tuned_matmul.h"

#include <cmath>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/values.h"

// Replaces cuBLASLt's matrix products by direct ones.

namespace annulus::cuda {
namespace {

using Function = MatmulProblem::Function;

constexpr std::size_t kWorkspaceBytes = 4096;  // not needed, but overwritten, to detect users of stale data

DataType output_type(const MatmulProblem& problem) {
  return problem.wide_output ? DataType::f32 : value_type(problem.precision);
}

// A matrix in memory, with rows of `length` values.
struct Matrix {
  std::size_t rows, columns, length;
  bool transposed;  // it is stored as {columns, rows}

  std::size_t count() const { return (transposed ? columns : rows) * length; }
  std::size_t at(std::size_t i, std::size_t j) const { return transposed ? j * length + i : i * length + j; }
};

Matrix a_of(const MatmulProblem& p) {
  return {p.rows, p.inner, p.a_length(), p.a_transposed};
}
Matrix b_of(const MatmulProblem& p) {
  return {p.inner, p.columns, p.b_length(), p.b_transposed};
}
Matrix output_of(const MatmulProblem& p) {
  return {p.rows, p.columns, p.output_length(), false};
}

// The `number`-th one of the matrices.
std::vector<float> load_matrix(const void* from, const Matrix& matrix, std::size_t number, Precision precision) {
  const auto* begin = static_cast<const std::byte*>(from) + number * matrix.count() * size_of(value_type(precision));
  const std::vector<float> values = emulated::load_factors(begin, matrix.count(), precision);
  std::vector<float> dense;
  for (std::size_t i = 0; i < matrix.rows; ++i)
    for (std::size_t j = 0; j < matrix.columns; ++j) dense.push_back(values[matrix.at(i, j)]);
  return dense;
}

std::vector<float> product(const MatmulProblem& p, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sums(p.rows * p.columns);
  for (std::size_t i = 0; i < p.rows; ++i)
    for (std::size_t k = 0; k < p.inner; ++k)
      for (std::size_t j = 0; j < p.columns; ++j) sums[i * p.columns + j] += a[i * p.inner + k] * b[k * p.columns + j];
  return sums;
}

// GELU with the hyperbolic tangent, of which `inner` is the argument.
struct Gelu {
  explicit Gelu(float x) : x_(x), inner_(kScale * (x + kCube * x * x * x)) {}
  float value() const { return 0.5f * x_ * (1 + std::tanh(inner_)); }
  float slope() const {
    const float t = std::tanh(inner_);
    return 0.5f * (1 + t) + 0.5f * x_ * (1 - t * t) * kScale * (1 + 3 * kCube * x_ * x_);
  }

 private:
  static constexpr float kScale = 0.7978845608f, kCube = 0.044715f;
  float x_, inner_;
};

// `input`: of GELU, read or written.
float apply(Function function, float value, float& input) {
  if (function == Function::gelu_backward) return value * Gelu(input).slope();
  if (function == Function::relu) return value < 0 ? 0 : value;
  input = value;
  return function == Function::none ? value : Gelu(value).value();
}

void compute(const MatmulProblem& p, std::size_t number, const MatmulOperands& o) {
  const std::vector<float> values =
      product(p, load_matrix(o.a, a_of(p), number, p.precision), load_matrix(o.b, b_of(p), number, p.precision));
  const Matrix matrix = output_of(p);
  void* to = static_cast<std::byte*>(o.output) + number * matrix.count() * size_of(output_type(p));
  std::vector<float> stored = emulated::load(to, matrix.count(), output_type(p));
  std::vector<float> inputs(stored.size()), bias(p.columns);
  if (p.bias) bias = emulated::load(o.bias, p.columns, output_type(p));
  if (p.has_gelu_input()) inputs = emulated::load(o.gelu_input, inputs.size(), output_type(p));
  for (std::size_t i = 0; i < values.size(); ++i) {
    float value = values[i];
    const std::size_t at = matrix.at(i / p.columns, i % p.columns);
    if (o.factor != nullptr) value *= *o.factor;
    if (p.accumulate) value += stored[at];
    value += bias[i % p.columns];
    stored[at] = apply(p.function, value, inputs[at]);
  }
  emulated::store(stored, to, output_type(p));
  if (p.function == Function::gelu_and_input) emulated::store(inputs, o.gelu_input, output_type(p));
}

class EmulatedMatmul final : public Matmul {
 public:
  explicit EmulatedMatmul(const MatmulProblem& problem) : problem_(problem) {}

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }

  void run(const MatmulOperands& o, void* workspace, cudaStream_t stream) override {
    const MatmulProblem& p = problem_;
    const std::size_t bytes = size_of(value_type(p.precision));
    emulated::check_operand("a product's first factor", o.a, p.count * a_of(p).count(), bytes);
    emulated::check_operand("a product's second factor", o.b, p.count * b_of(p).count(), bytes);
    emulated::check_operand("a product", o.output, p.count * output_of(p).count(), size_of(output_type(p)));
    emulated::check_operand("a product's workspace", workspace, kWorkspaceBytes, 1);
    if (p.bias) emulated::check_operand("a product's bias", o.bias, p.columns, size_of(output_type(p)));
    if (p.has_gelu_input())
      emulated::check_operand("a GELU's input", o.gelu_input, output_of(p).count(), size_of(output_type(p)));
    if (o.factor != nullptr && !emulated::device_reaches(o.factor, sizeof(float)))
      fail("a product's factor at {} is not a device's memory", fmt::ptr(o.factor));
    check(emulated::enqueue(stream, [=, operands = emulated::accessible(o)] {
      std::memset(emulated::accessible(workspace), 0xff, kWorkspaceBytes);
      for (std::size_t i = 0; i < p.count; ++i) compute(p, i, operands);
    }));
  }

 private:
  MatmulProblem problem_;
};

class EmulatedMatmuls final : public MatmulPlanner {
 public:
  std::unique_ptr<Matmul> plan(const MatmulProblem& p) override {
    emulated::check_multiple("values in a row of a product", p.output_length(), p.precision);
    emulated::check_multiple("values in a row of the first factor", p.a_length(), p.precision);
    emulated::check_multiple("values in a row of the second factor", p.b_length(), p.precision);
    if (p.has_gelu() && (p.count > 1 || p.accumulate)) fail("GELU is only of a single product, alone");
    if (p.function == Function::gelu_backward && p.bias) fail("GELU's gradient has no bias");
    return std::make_unique<EmulatedMatmul>(p);
  }
};

}  // namespace

std::unique_ptr<MatmulPlanner> make_matmul_planner() {
  return std::make_unique<EmulatedMatmuls>();
}

std::unique_ptr<MatmulPlanner> make_matmul_planner(const Tuning&, std::shared_ptr<TuningBudget>) {
  return make_matmul_planner();
}

}  // namespace annulus::cuda
