#include <algorithm>

#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/runtime/layout.h"

namespace annulus::cuda {
namespace {

// C {m, n'} = A {m, k'} B {k, n'}, so dA = dC B^T and dB = A^T dC.
class MatrixProductOp : public Op {
 public:
  MatrixProductOp(const MatrixProduct& operation, const Specs& inputs, Mode mode, Context& context)
      : mode_(mode), context_(context) {
    const Shape &a = inputs[0].shape, &b = inputs[1].shape;
    info_.output = last_spec(operation.output_shape({a, b}), context.type());
    info_.inputs.assign(2, {.adds_to_gradient = true});
    info_.backward_reads_output = false;
    m_ = a[a.size() - 2];
    k_ = a.back();
    k_padded_ = channels_last(inputs[0]).channels();
    n_padded_ = channels_last(inputs[1]).channels();
    count_ = elements(a) / (m_ * k_);
    product_ = context.matmuls->plan({.precision = context.precision,
                                      .rows = m_,
                                      .columns = n_padded_,
                                      .inner = k_,
                                      .count = count_,
                                      .a_row = k_padded_});
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    std::size_t bytes = product_->workspace_bytes();
    if (mode_ == Mode::training) {
      if (bindings.input_gradients[0])
        to_a_ = context_.matmuls->plan({.precision = context_.precision,
                                        .rows = m_,
                                        .columns = k_,
                                        .inner = n_padded_,
                                        .b_transposed = true,
                                        .accumulate = bindings.accumulates(0),
                                        .count = count_,
                                        .output_row = k_padded_});
      if (bindings.input_gradients[1])
        to_b_ = context_.matmuls->plan({.precision = context_.precision,
                                        .rows = k_,
                                        .columns = n_padded_,
                                        .inner = m_,
                                        .a_transposed = true,
                                        .accumulate = bindings.accumulates(1),
                                        .count = count_,
                                        .a_row = k_padded_});
      for (const auto* matmul : {to_a_.get(), to_b_.get()})
        if (matmul != nullptr) bytes = std::max(bytes, matmul->workspace_bytes());
    }
    workspace_ = context_.workspace(bytes);
  }

  void forward() override {
    product_->run({bindings_.inputs[0].address, bindings_.inputs[1].address, bindings_.output.address}, workspace_,
                  lane());
  }

  void backward(float) override {
    std::byte* gradient = bindings_.output_gradient.address;
    if (to_a_) {
      const DeviceView to = bindings_.input_gradients[0];
      if (k_ != k_padded_ && !bindings_.accumulates(0))
        check(cudaMemsetAsync(to.address, 0, to.bytes, lane()));  // padding
      to_a_->run({gradient, bindings_.inputs[1].address, to.address}, workspace_, lane());
    }
    if (to_b_)
      to_b_->run({bindings_.inputs[0].address, gradient, bindings_.input_gradients[1].address}, workspace_, lane());
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }

  Mode mode_;
  Context& context_;
  std::size_t m_, k_, k_padded_, n_padded_, count_;
  std::unique_ptr<Matmul> product_, to_a_, to_b_;  // the latter are null if not needed
  Bindings bindings_;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const MatrixProduct& operation, const Specs& inputs, Mode mode, Context& context) {
  return std::make_unique<MatrixProductOp>(operation, inputs, mode, context);
}

}  // namespace annulus::cuda
