#include "kernels/cpu/orthogonalize.h"

#include <algorithm>
#include <cmath>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/host_memory.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/squares.h"
#include "kernels/cpu/tile_orthogonalizer.h"
#include "kernels/instruction_set.h"

namespace annulus::cpu {
namespace {

// A row-major matrix, which may be used transposed.
struct Operand {
  const float* values;
  std::size_t row;  // length
  bool transposed = false;

  const float* at(std::size_t i, std::size_t j) const { return values + (transposed ? j * row + i : i * row + j); }
};

struct Product {
  std::size_t rows, columns, inner;
  float factor = 1, of_result = 0;  // result = factor a b + of_result result
  bool symmetric = false;           // the result is: only the upper triangle is computed
};

// Output blocks depend on the product's size only, and each is computed by a single thread: oneDNN divides a larger
// product in a way that depends on the number of threads, and so do the bits.
std::size_t block_of(std::size_t extent) {
  constexpr std::size_t kLeast = 64, kMost = 256, kBlocks = 4, kUnit = 32;
  return std::clamp((extent / kBlocks + kUnit - 1) / kUnit * kUnit, kLeast, kMost);
}

void mirror(std::size_t size, float* square) {
  const auto end = static_cast<std::ptrdiff_t>(size);
#pragma omp parallel for schedule(static, 16)
  for (std::ptrdiff_t i = 1; i < end; ++i)
    for (std::ptrdiff_t j = 0; j < i; ++j) square[i * end + j] = square[j * end + i];
}

void multiply(const Product& p, const Operand& a, const Operand& b, float* result) {
  const std::size_t height = block_of(p.rows), width = p.symmetric ? height : block_of(p.columns);
  const std::size_t across = (p.columns + width - 1) / width, blocks = (p.rows + height - 1) / height * across;
  bool failed = false;
#pragma omp parallel for schedule(dynamic, 1) reduction(|| : failed)
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t i = block / across * height, j = block % across * width;
    if (p.symmetric && j < i) continue;
    const auto dim = [](std::size_t size) { return static_cast<dnnl_dim_t>(size); };
    const auto letter = [](const Operand& operand) { return operand.transposed ? 'T' : 'N'; };
    failed = dnnl_sgemm(letter(a), letter(b), dim(std::min(height, p.rows - i)), dim(std::min(width, p.columns - j)),
                        dim(p.inner), p.factor, a.at(i, 0), dim(a.row), b.at(0, j), dim(b.row), p.of_result,
                        result + i * p.columns + j, dim(p.columns)) != dnnl_success ||
             failed;
  }
  if (failed) fail("oneDNN: a product of matrices failed");
  if (p.symmetric) mirror(p.rows, result);
}

class Float32Orthogonalizer final : public Orthogonalizer {
 public:
  explicit Float32Orthogonalizer(const Muon& rule) : steps_(orthogonalizing_steps(rule)) {}

  void run(std::span<float> matrix, const MatrixSize& size) override {
    if (matrix.empty()) return;
    const bool tall = size.rows > size.columns;
    const std::size_t n = std::min(size.rows, size.columns), inner = std::max(size.rows, size.columns);
    scale(matrix, norm_factor(matrix), matrix);
    std::span<float> x = matrix, next = next_.first(matrix.size());
    const std::size_t stretch = inner > n ? 3 : 1;
    for (std::size_t step = 0; step < steps_.size(); step += stretch) {
      const std::span<float> squared = squared_.first(n * n);
      const Operand wide{x.data(), size.columns, tall}, flipped{x.data(), size.columns, !tall};
      multiply({.rows = n, .columns = n, .inner = inner, .symmetric = true}, wide, flipped, squared.data());
      const Operand left{product_of_steps(step, std::min(step + stretch, steps_.size()), n), n},
          as_stored{x.data(), size.columns};
      multiply({.rows = size.rows, .columns = size.columns, .inner = n}, tall ? as_stored : left,
               tall ? left : as_stored, next.data());
      std::swap(x, next);
    }
    copy(x, matrix);
  }

 private:
  // A step multiplies X by P = a I + b S + c S^2, and so S = X X^T by P^2: several steps need only squares with the
  // smaller side (Zhang, Amsel, Chen, Dao, "Gram Newton-Schulz", 2026). float32 loses small singular values of S, so
  // after three steps S is computed from X again. All these matrices commute.
  const float* product_of_steps(std::size_t begin, std::size_t end, std::size_t n) {
    float *const s = squared_.first(n * n).data(), *const p = polynomial_.first(n * n).data();
    std::span<float> all = product_.first(n * n), spare = spare_.first(n * n);
    polynomial(steps_[begin], s, p, n);
    std::copy_n(p, n * n, all.data());
    for (std::size_t step = begin + 1; step < end; ++step) {
      multiply_squares(n, s, p, spare.data());
      multiply_squares(n, spare.data(), p, s);
      polynomial(steps_[step], s, p, n);
      multiply_squares(n, p, all.data(), spare.data());
      std::swap(all, spare);
    }
    return all.data();
  }

  static void polynomial(const OrthogonalizingStep& step, const float* s, float* p, std::size_t n) {
    copy({s, n * n}, {p, n * n});
    multiply({.rows = n, .columns = n, .inner = n, .factor = step.c, .of_result = step.b, .symmetric = true}, {s, n},
             {s, n}, p);
    for (std::size_t i = 0; i < n; ++i) p[i * n + i] += step.a;
  }

  static void multiply_squares(std::size_t n, const float* a, const float* b, float* result) {
    multiply({.rows = n, .columns = n, .inner = n, .symmetric = true}, {a, n}, {b, n}, result);
  }

  const std::vector<OrthogonalizingStep> steps_;
  HostArray<float> next_, squared_, polynomial_, product_, spare_;
};

}  // namespace

float norm_factor(std::span<const float> matrix) {
  constexpr double kLeastNorm = 1e-7;  // PyTorch's torch.optim.Muon
  return static_cast<float>(1 / std::max(std::sqrt(squares(matrix).value()), kLeastNorm));
}

std::unique_ptr<Orthogonalizer> make_orthogonalizer(const Muon& rule) {
  if (used_instruction_set() == InstructionSet::amx) return make_tile_orthogonalizer(rule);
  return make_float32_orthogonalizer(rule);
}

std::unique_ptr<Orthogonalizer> make_float32_orthogonalizer(const Muon& rule) {
  return std::make_unique<Float32Orthogonalizer>(rule);
}

}  // namespace annulus::cpu
