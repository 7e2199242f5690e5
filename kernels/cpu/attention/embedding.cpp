#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class TokenEmbeddingOp : public PlainOp {
 public:
  TokenEmbeddingOp(const TokenEmbedding& operation, const TensorSpec& window)
      : PlainOp({window}, operation.output_shape({window.shape})),
        vocabulary_(operation.vocabulary),
        form_(window_form(window.shape)),
        width_(operation.width) {
    declare(operation.parameters({window.shape}));
    embedded_.resize(shape()[0] * form_.length);
  }

 private:
  void compute() override {
    take_tokens(integers(input_view(0)), form_, vocabulary_, 0, embedded_);
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < embedded_.size(); ++i) {
      float* to = output() + i * width_;
      if (embedded_[i] < 0)
        std::fill_n(to, width_, 0.0f);
      else
        std::copy_n(parameter(0) + static_cast<std::size_t>(embedded_[i]) * width_, width_, to);
    }
  }

  void differentiate() override {
    const std::span<float> to = floats(bindings().parameter_gradients[0]);
    std::ranges::fill(to, 0.0f);
    add_rows({output_gradient(), embedded_.size() * width_}, embedded_, width_, to);
  }

  std::size_t vocabulary_;
  WindowForm form_;
  std::size_t width_;
  std::vector<std::int32_t> embedded_;  // tokens
};

class PositionEmbeddingOp : public PlainOp {
 public:
  PositionEmbeddingOp(const PositionEmbedding& operation, const Specs& inputs)
      : PlainOp(inputs, inputs[0].shape),
        batch_(inputs[0].shape[0]),
        table_(inputs[0].shape[1] * inputs[0].shape[2]),
        positions_(operation.positions),
        positions_given_(inputs.size() > 1) {
    declare(operation.parameters({inputs[0].shape}));
    info_.inputs.assign(inputs.size(), {.backward_reads = false});
    info_.inputs[0].output_may_overwrite = info_.inputs[0].gradient_may_overwrite = true;
  }

 private:
  void compute() override {
    for (std::size_t sample = 0; sample < batch_; ++sample)
      sum({input(0) + sample * table_, table_}, {parameter(0) + first_row(sample) * table_, table_},
          {output() + sample * table_, table_});
  }

  std::size_t first_row(std::size_t sample) const {
    if (!positions_given_) return 0;
    const auto position = static_cast<std::size_t>(integers(input_view(1))[sample]);
    if (position >= positions_) fail("there is no position {}, only {}", position, positions_);
    return position;
  }

  void differentiate() override {
    if (trains_parameters()) {
      const std::span<float> to = floats(bindings().parameter_gradients[0]);
      std::ranges::fill(to, 0.0f);
      for (std::size_t sample = 0; sample < batch_; ++sample)
        add({output_gradient() + sample * table_, table_}, to.first(table_));
    }
    if (input_gradient(0) != nullptr) copy({output_gradient(), batch_ * table_}, {input_gradient(0), batch_ * table_});
  }

  std::size_t batch_, table_;  // table_: values for the positions that are used
  std::size_t positions_;
  bool positions_given_;
};

}  // namespace

std::unique_ptr<Op> plan(const TokenEmbedding& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<TokenEmbeddingOp>(operation, inputs[0]);
}

std::unique_ptr<Op> plan(const PositionEmbedding& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<PositionEmbeddingOp>(operation, inputs);
}

}  // namespace annulus::cpu
