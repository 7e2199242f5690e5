#include "kernels/base/error.h"
#include "kernels/cpu/loops/elementwise.h"
#include "kernels/cpu/plan/dnnl_memory.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

class ImageInputOp : public Op {
 public:
  ImageInputOp(const ImageInput& operation, const Specs& inputs) : shape_(inputs[0].shape) {
    const Shape shape = output_shape(Operation(operation), {shape_});
    info_.output = spec(shape, plain_layout(shape));
    info_.inputs = {{.backward_reads = false}};
    info_.backward_reads_output = false;
    for (std::size_t c = 0; c < shape[1]; ++c) {
      factor_.push_back(1.0f / (255.0f * operation.stddev[c]));
      offset_.push_back(-operation.mean[c] / operation.stddev[c]);
    }
  }

  void bind(const Bindings& bindings) override {
    pixels_ = reinterpret_cast<const std::uint8_t*>(bindings.inputs[0].address);
    values_ = floats(bindings.output).data();
  }

  void forward() override {
    const std::size_t channels = shape_[3];
    const std::size_t area = shape_[1] * shape_[2];
#pragma omp parallel for collapse(2) schedule(static)
    for (std::size_t image = 0; image < shape_[0]; ++image)
      for (std::size_t c = 0; c < channels; ++c) {
        const std::uint8_t* from = pixels_ + image * area * channels + c;
        float* to = values_ + (image * channels + c) * area;
        for (std::size_t i = 0; i < area; ++i) to[i] = static_cast<float>(from[i * channels]) * factor_[c] + offset_[c];
      }
  }

  void backward(float) override {}  // nothing below needs a gradient

 private:
  Shape shape_;
  std::vector<float> factor_, offset_;
  const std::uint8_t* pixels_ = nullptr;
  float* values_ = nullptr;
};

class ReluOp : public Op {
 public:
  explicit ReluOp(const TensorSpec& input) {
    info_.output = input;
    info_.inputs = {{.backward_reads = false, .output_may_overwrite = true, .gradient_may_overwrite = true}};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }
  void forward() override { relu(floats(bindings_.inputs[0]), floats(bindings_.output)); }

  void backward(float) override {
    relu_backward(floats(bindings_.output), floats(bindings_.output_gradient), floats(bindings_.input_gradients[0]));
  }

 private:
  Bindings bindings_;
};

class AddOp : public Op {
 public:
  explicit AddOp(const Specs& inputs) : first_(desc(inputs[0])), second_(desc(inputs[1])) {
    const auto use = [](bool in_place) {
      return InputUse{.backward_reads = false,
                      .output_may_overwrite = in_place,
                      .gradient_may_overwrite = in_place,
                      .gradient_is_outputs = in_place};
    };
    info_.output = inputs[0];
    info_.inputs = {use(true), use(first_ == second_)};
    info_.backward_reads_output = false;
    info_.scratch_bytes = Scratch::bytes({Adapted::copy(second_, first_)});
    info_.implementations = Adapted::implementations(second_, first_);
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    Scratch for_forward(bindings.scratch), for_backward(bindings.scratch);
    adapted_ = {second_, first_, bindings.inputs[1], for_forward};
    adapted_values_ = {static_cast<const float*>(adapted_.wanted().get_data_handle()),
                       first_.get_size() / sizeof(float)};
    if (bindings.output_gradient && bindings.input_gradients[1]) {
      adapted_gradient_ = {second_, first_, bindings.input_gradients[1], for_backward};
      second_gradient_ = {static_cast<float*>(adapted_gradient_.wanted().get_data_handle()),
                          first_.get_size() / sizeof(float)};
    }
  }

  void forward() override {
    adapted_.load();
    sum(floats(bindings_.inputs[0]), adapted_values_, floats(bindings_.output));
  }

  void backward(float) override {
    const auto gradient = floats(bindings_.output_gradient);
    if (bindings_.input_gradients[0]) copy(gradient, floats(bindings_.input_gradients[0]));
    copy(gradient, second_gradient_);
    adapted_gradient_.store();
  }

 private:
  dnnl::memory::desc first_, second_;
  Bindings bindings_;
  Adapted adapted_, adapted_gradient_;
  std::span<const float> adapted_values_;
  std::span<float> second_gradient_;
};

}  // namespace

std::unique_ptr<Op> plan(const ImageInput& operation, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ImageInputOp>(operation, inputs);
}

std::unique_ptr<Op> plan(const Relu&, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<ReluOp>(inputs[0]);
}

std::unique_ptr<Op> plan(const Add&, const Specs& inputs, Mode, const Specs&) {
  return std::make_unique<AddOp>(inputs);
}

}  // namespace annulus::cpu
