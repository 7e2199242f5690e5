#include "kernels/cpu/plan/dnnl_pass.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

using dnnl::memory;

// A stack of matrices, or of transposed matrices, in row-major memory.
memory::desc matrices(std::size_t count, std::size_t rows, std::size_t columns, bool transposed) {
  const auto dim = [](std::size_t size) { return static_cast<memory::dim>(size); };
  if (!transposed) return plain_layout({count, rows, columns});
  return {{dim(count), dim(columns), dim(rows)},
          memory::data_type::f32,
          memory::dims{dim(rows * columns), 1, dim(columns)}};
}

DnnlPass product(const memory::desc& a, const memory::desc& b, const memory::desc& to) {
  const dnnl::matmul::primitive_desc planned(dnnl::matmul::desc(a, b, to), attributes(), engine());
  return {planned, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, to, true}}};
}

// C = A B, so dA = dC B^T and dB = A^T dC.
class MatrixProductOp : public PlainOp {
 public:
  MatrixProductOp(const MatrixProduct& operation, const Specs& inputs, Mode mode)
      : PlainOp(inputs, output_shape(operation, {inputs[0].shape, inputs[1].shape})) {
    const Shape &a = inputs[0].shape, &b = inputs[1].shape;
    const std::size_t m = a[a.size() - 2], k = a.back(), n = b.back(), count = elements(a) / (m * k);
    forward_ = product(matrices(count, m, k, false), matrices(count, k, n, false), matrices(count, m, n, false));
    if (mode == Mode::training) {
      to_a_ = product(matrices(count, m, n, false), matrices(count, k, n, true), matrices(count, m, k, false));
      to_b_ = product(matrices(count, m, k, true), matrices(count, m, n, false), matrices(count, k, n, false));
    }
    need_scratch(most_scratch({&forward_, &to_a_, &to_b_}));
    for (const std::string& name : implementations_of({&forward_, &to_a_, &to_b_}))
      info_.implementations.push_back(name);
  }

 private:
  void bound() override {
    forward_.bind({input_view(0), input_view(1), bindings().output}, own_scratch());
    if (!training()) return;
    if (input_gradient(0) != nullptr)
      to_a_.bind({bindings().output_gradient, input_view(1), gradient_view(0)}, own_scratch());
    if (input_gradient(1) != nullptr)
      to_b_.bind({input_view(0), bindings().output_gradient, gradient_view(1)}, own_scratch());
  }

  void compute() override { forward_.run(); }

  void differentiate() override {
    to_a_.run();
    to_b_.run();
  }

  DnnlPass forward_, to_a_, to_b_;
};

}  // namespace

std::unique_ptr<Op> plan(const MatrixProduct& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<MatrixProductOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
