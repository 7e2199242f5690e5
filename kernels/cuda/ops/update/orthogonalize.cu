#include "kernels/cuda/ops/update/orthogonalize.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/cuda/ops/loops/chunks.h"
#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/elementwise.h"
#include "kernels/cuda/ops/loops/over_vectors.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256, kMostBlocks = 256;
constexpr float kLeastNorm = 1e-7f;  // PyTorch's torch.optim.Muon

// Each block, a single column of threads, adds up the squares of every gridDim.x-th part.
__global__ void square_sums(Predecessor previous, const float* values, std::size_t count, Sums<1>* squares) {
  await(previous);
  Sums<1> sums[1]{};
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.y + threadIdx.y;
  for (std::size_t i = 4 * first; i < count; i += std::size_t{4} * gridDim.x * blockDim.y)
    for (const float value : load_floats<4>(values + i).at) sums[0].of[0] += value * value;
  add_up_block(sums);
  if (threadIdx.y == 0) squares[blockIdx.x] = sums[0];
}

// Runs in a single block.
__global__ void find_norm_factor(Predecessor previous, const Sums<1>* squares, unsigned count, float* factor) {
  await(previous);
  Sums<1> sums[1]{};
  for (unsigned i = threadIdx.y; i < count; i += blockDim.y) sums[0] = combined(sums[0], squares[i]);
  add_up_block(sums);
  if (threadIdx.y == 0) *factor = 1 / fmaxf(sqrtf(sums[0].of[0]), kLeastNorm);
}

// polynomial = a I + b squared. `across`: vectors in a row.
template <class T>
__global__ void begin_polynomial(Predecessor previous, const T* squared, OrthogonalizingStep step, T* polynomial,
                                 std::size_t across, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t row = i / across, column = i % across * kLanes<T>;
    Vector<T> values = load(squared, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = step.b * values.at[k] + (row == column + k ? step.a : 0);
    store(values, polynomial, i);
  }
}

// The products of an iteration, with S = X X^T, or X^T X if X is tall. (With the longer side, S would have many
// singular values of 0, and in 16 bits their rounding errors would be larger.)
struct Products {
  Products(const StoredMatrix& x, Precision precision, MatmulPlanner& planner)
      : side(x.tall ? x.columns : x.rows),
        square(planner.plan({.precision = precision,
                             .rows = side,
                             .columns = side,
                             .inner = x.tall ? x.rows : x.columns,
                             .a_transposed = x.tall,
                             .b_transposed = !x.tall})),
        polynomial(
            planner.plan({.precision = precision, .rows = side, .columns = side, .inner = side, .accumulate = true})),
        multiply(planner.plan({.precision = precision, .rows = x.rows, .columns = x.columns, .inner = side})),
        finish(planner.plan(
            {.precision = precision, .rows = x.rows, .columns = x.columns, .inner = side, .wide_output = true})) {}

  std::size_t workspace_bytes() const {
    return std::max({square->workspace_bytes(), polynomial->workspace_bytes(), multiply->workspace_bytes(),
                     finish->workspace_bytes()});
  }

  std::size_t side;
  std::unique_ptr<Matmul> square, polynomial, multiply;
  std::unique_ptr<Matmul> finish;  // the last step, in float32
};

template <class T>
class ProductOrthogonalizer final : public Orthogonalizer {
 public:
  ProductOrthogonalizer(const Muon& rule, const std::vector<StoredMatrix>& matrices, Context& context)
      : context_(context), steps_(orthogonalizing_steps(rule)) {
    std::size_t most = 0, most_squared = 0, workspace = 0;
    for (const StoredMatrix& matrix : matrices) {
      if (matrix.elements() == 0) continue;
      const Products& products =
          products_.try_emplace(matrix, matrix, context_.precision, *context_.matmuls).first->second;
      most = std::max(most, matrix.elements());
      most_squared = std::max(most_squared, products.side * products.side);
      workspace = std::max(workspace, products.workspace_bytes());
    }
    for (Buffer& x : x_) x = allocate_device(most * sizeof(T));
    squared_ = allocate_device(most_squared * sizeof(T));
    polynomial_ = allocate_device(most_squared * sizeof(T));
    workspace_ = allocate_device(workspace);
    std::vector<float> factors;
    for (const OrthogonalizingStep& step : steps_) factors.push_back(step.c);
    factors_ = on_device(factors);
  }

  void run(DeviceView from, DeviceView to, const StoredMatrix& matrix) override {
    if (matrix.elements() == 0) return;
    const Products& products = products_.at(matrix);
    find_norm_factor_of(from);
    T *x = data<T>(x_[0].view()), *next = data<T>(x_[1].view());
    narrow(from, x_[0].view().slice(0, matrix.elements() * sizeof(T)), data<float>(norm_factor_.view()), context_);
    for (std::size_t step = 0; step < steps_.size(); ++step) {
      compute_polynomial(products, x, step);
      const T* const p = data<T>(polynomial_.view());
      const bool last = step + 1 == steps_.size();
      void* const result = last ? static_cast<void*>(data<float>(to)) : next;
      multiply(last ? *products.finish : *products.multiply,
               matrix.tall ? MatmulOperands{x, p, result} : MatmulOperands{p, x, result});
      std::swap(x, next);
    }
  }

 private:
  void find_norm_factor_of(DeviceView matrix) const {
    const std::size_t count = matrix.bytes / sizeof(float);
    const unsigned blocks = std::min(kMostBlocks, blocks_for(count / 4, kThreads, context_.multiprocessors));
    auto* const squares = data<Sums<1>>(squares_.view());
    launch(square_sums, blocks, dim3(1, kThreads), context_.lane.get(), data<float>(matrix), count, squares);
    launch(find_norm_factor, 1, dim3(1, kThreads), context_.lane.get(), squares, blocks,
           data<float>(norm_factor_.view()));
  }

  // a I + b S + c S^2
  void compute_polynomial(const Products& products, const T* x, std::size_t step) const {
    T *const squared = data<T>(squared_.view()), *const polynomial = data<T>(polynomial_.view());
    multiply(*products.square, {x, x, squared});
    const std::size_t across = products.side / kLanes<T>;
    over_vectors(begin_polynomial<T>, products.side * across, context_, squared, steps_[step], polynomial, across);
    multiply(*products.polynomial,
             {.a = squared, .b = squared, .output = polynomial, .factor = data<float>(factors_.view()) + step});
  }

  void multiply(Matmul& product, const MatmulOperands& operands) const {
    product.run(operands, workspace_.view().address, context_.lane.get());
  }

  Context& context_;
  const std::vector<OrthogonalizingStep> steps_;
  std::map<StoredMatrix, Products> products_;
  Buffer x_[2], squared_, polynomial_, workspace_, factors_;
  const Buffer squares_ = allocate_device(kMostBlocks * sizeof(Sums<1>)), norm_factor_ = allocate_device(sizeof(float));
};

}  // namespace

std::unique_ptr<Orthogonalizer> make_orthogonalizer(const Muon& rule, const std::vector<StoredMatrix>& matrices,
                                                    Context& context) {
  return make_for<Orthogonalizer, ProductOrthogonalizer>(context.type(), rule, matrices, context);
}

}  // namespace annulus::cuda
