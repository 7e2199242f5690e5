#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/loops/strided_loops.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/dropout_mask.h"

namespace annulus::cuda {
namespace {

// `loop` counts the elements in row-major order; each key has `each` elements.
template <class T>
__global__ void drop(Predecessor previous, DropoutMask mask, bool whole, const __grid_constant__ Loop<1> loop,
                     std::size_t each, const std::int32_t* keys, const T* from, InputGradient<T> to,
                     std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Lanes lanes = loop.at(static_cast<unsigned>(i)).of[0];
    const auto first = static_cast<std::size_t>(lanes.offset), step = static_cast<std::size_t>(lanes.stride);
    const std::uint64_t sample = mask.of_sample(keys[first / each]);
    Vector<T> values = load(from, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] *= mask.at(sample, whole ? 0 : first % each + k * step);
    to.put(values, i);
  }
}

template <class T>
class DropoutOp : public Op {
 public:
  DropoutOp(const Dropout& operation, const Specs& inputs, Mode mode, Context& context)
      : context_(context),
        mode_(mode),
        mask_(operation.rate, operation.number),
        whole_(operation.whole_samples),
        each_(elements(inputs[0].shape) / inputs[1].shape[0]),
        loop_(loop_over<1>(channels_last(inputs[0]), {row_major_strides(inputs[0].shape)}, kLanes<T>)),
        vectors_(vectors_of(channels_last(inputs[0]))) {
    info_.output = inputs[0];
    // Each vector is read before the result replaces it.
    info_.inputs = {{.backward_reads = false,
                     .output_may_overwrite = true,
                     .gradient_may_overwrite = true,
                     .adds_to_gradient = true},
                    {.backward_reads = false}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    if (mode_ == Mode::inference) {
      if (bindings_.output.address == bindings_.inputs[0].address) return;
      check(cudaMemcpyAsync(bindings_.output.address, bindings_.inputs[0].address, vectors_ * kVectorBytes,
                            cudaMemcpyDeviceToDevice, context_.lane.get()));
      return;
    }
    apply(bindings_.inputs[0], InputGradient<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted()) apply(bindings_.output_gradient, to);
  }

 private:
  void apply(DeviceView from, const InputGradient<T>& to) const {
    over_vectors(drop<T>, vectors_, context_, mask_, whole_, loop_, each_, data<std::int32_t>(bindings_.inputs[1]),
                 data<T>(from), to);
  }

  Context& context_;
  Mode mode_;
  DropoutMask mask_;
  bool whole_;
  std::size_t each_;
  Loop<1> loop_;
  std::size_t vectors_;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Dropout& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, DropoutOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
