#include "kernels/cuda/ops/input_gradient.h"
#include "kernels/cuda/ops/operations.h"
#include "kernels/cuda/ops/over_vectors.h"
#include "kernels/dropout_mask.h"

namespace annulus::cuda {
namespace {

// Samples of `pixels` pixels of `width` vectors each.
struct Sample {
  unsigned pixels, width;
};

template <class T>
__global__ void drop(DropoutMask mask, Sample size, const std::int32_t* keys, const T* from, InputGradient<T> to,
                     std::size_t vectors) {
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t pixel = i / size.width;
    const std::uint64_t sample = mask.of_sample(keys[pixel / size.pixels]);
    const std::uint64_t channel = i % size.width * kLanes<T>;
    Vector<T> values = load(from, i);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      values.at[k] *= mask.at(sample, (channel + k) * size.pixels + pixel % size.pixels);
    to.put(values, i);
  }
}

template <class T>
class DropoutOp : public Op {
 public:
  DropoutOp(const Dropout& operation, const TensorSpec& input, Mode mode, Context& context)
      : context_(context), mode_(mode), mask_(operation.rate, operation.number) {
    const ChannelsLast& layout = channels_last(input);
    info_.output = value_spec(input.shape, context.type());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}, {.backward_reads = false}};
    info_.backward_reads_output = false;
    size_ = {static_cast<unsigned>(layout.pixels()), static_cast<unsigned>(layout.channels() / kLanes<T>)};
    vectors_ = layout.bytes() / kVectorBytes;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    if (mode_ == Mode::inference) {
      check(cudaMemcpyAsync(bindings_.output.address, bindings_.inputs[0].address, vectors_ * kVectorBytes,
                            cudaMemcpyDeviceToDevice, context_.lane.get()));
      return;
    }
    InputGradient<T> to;  // written like a gradient
    to.values = data<T>(bindings_.output);
    apply(bindings_.inputs[0], to);
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted()) apply(bindings_.output_gradient, to);
  }

 private:
  void apply(DeviceView from, const InputGradient<T>& to) const {
    over_vectors(drop<T>, vectors_, context_, mask_, size_, data<std::int32_t>(bindings_.inputs[1]), data<T>(from), to);
  }

  Context& context_;
  Mode mode_;
  DropoutMask mask_;
  Sample size_;
  std::size_t vectors_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Dropout& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, DropoutOp>(context.type(), operation, inputs[0], mode, context);
}

}  // namespace annulus::cuda
