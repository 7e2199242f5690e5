#include "kernels/dropout_mask.h"

#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// Backward computes the mask again instead of storing it.
class DropoutOp : public Op {
 public:
  DropoutOp(const Dropout& operation, const TensorSpec& input, const TensorSpec& keys, Mode mode)
      : mode_(mode),
        mask_(operation.rate, operation.number),
        whole_samples_(operation.whole_samples),
        batch_(keys.shape[0]) {
    info_.output = input;
    info_.inputs = {{.backward_reads = false, .output_may_overwrite = true, .gradient_may_overwrite = true},
                    {.backward_reads = false}};
    info_.backward_reads_output = false;
    images_ = input.shape.size() == 4 ? image_layout(input) : ImageLayout{batch_, elements(input.shape) / batch_, 1, 1};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    if (mode_ == Mode::inference) return copy(floats(bindings_.inputs[0]), floats(bindings_.output));
    apply(floats(bindings_.inputs[0]), floats(bindings_.output));
  }

  void backward(float) override {
    if (bindings_.input_gradients[0]) apply(floats(bindings_.output_gradient), floats(bindings_.input_gradients[0]));
  }

 private:
  void apply(std::span<const float> from, std::span<float> to) const {
    const auto* keys = reinterpret_cast<const std::int32_t*>(bindings_.inputs[1].address);
    const auto& [outer, height, width, inner] = images_;
    const std::size_t planes = outer / batch_, pixels = height * width;
#pragma omp parallel for schedule(static)
    for (std::size_t plane = 0; plane < outer; ++plane) {
      const std::uint64_t sample = mask_.of_sample(keys[plane / planes]);
      std::size_t at = plane * pixels * inner;
      const float factor = mask_.at(sample, 0);
      for (std::size_t pixel = 0; pixel < pixels; ++pixel)
        for (std::size_t lane = 0; lane < inner; ++lane, ++at)
          to[at] =
              from[at] * (whole_samples_ ? factor : mask_.at(sample, (plane % planes * inner + lane) * pixels + pixel));
    }
  }

  Mode mode_;
  DropoutMask mask_;
  bool whole_samples_;
  std::size_t batch_;
  ImageLayout images_;  // a vector counts as an image with a single channel
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Dropout& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<DropoutOp>(operation, inputs[0], inputs[1], mode);
}

}  // namespace annulus::cpu
