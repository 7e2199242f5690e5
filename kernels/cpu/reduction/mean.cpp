#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/loops/strided_loops.h"
#include "kernels/cpu/plan/plain_op.h"

namespace annulus::cpu {
namespace {

class MeanOp : public PlainOp {
 public:
  MeanOp(const Mean& operation, const TensorSpec& input)
      : PlainOp({input}, output_shape(operation, {input.shape})),
        factor_(static_cast<float>(elements(shape())) / static_cast<float>(elements(input.shape))) {
    info_.inputs = {{.backward_reads = false}};
    const Shape kept = Mean{operation.axes, true}.output_shape({input.shape});
    walk_ = {input.shape, row_major_strides(input.shape), row_major_strides(kept)};
    for (const std::size_t axis : operation.axes) walk_.to[axis] = 0;
  }

 private:
  void compute() override {
    sum_elements(walk_, input(0), output());
    scale({output(), elements(shape())}, factor_, {output(), elements(shape())});
  }

  void differentiate() override {
    const std::span gradient(input_gradient(0), elements(shape(0)));
    move_elements({walk_.shape, walk_.to, walk_.from}, output_gradient(), gradient.data());
    scale(gradient, factor_, gradient);
  }

  float factor_;
  Walk walk_;
};

}  // namespace

std::unique_ptr<Op> plan(const Mean& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<MeanOp>(operation, inputs[0]);
}

}  // namespace annulus::cpu
