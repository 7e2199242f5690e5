#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loss/class_labels.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kSampleThreads = 128;
constexpr unsigned kThreads = 256;

// Runs a block, a single column of threads, for each sample. A class's loss is -t log(sigmoid(x)) - (1 - t) log(1 -
// sigmoid(x)) = log(1 + exp(x)) - t x, computed without overflow.
template <class T>
__global__ void binary_losses(Predecessor previous, const T* logits, Labels labels, std::uint32_t classes,
                              std::size_t stride, float smoothing, SampleLoss* losses) {
  await(previous);
  const T* row = logits + blockIdx.x * stride;
  const Target target = target_of(labels, blockIdx.x);
  const float of_label = load(row, target.label / kLanes<T>).at[target.label % kLanes<T>];
  Sums<2> sums[1]{};  // the losses, and how many logits rank above the label's
  for_each_logit(row, classes, [&](float logit, std::uint32_t c) {
    sums[0].of[0] +=
        fmaxf(logit, 0) + log1pf(expf(-fabsf(logit))) - target_probability(target, c, smoothing, classes) * logit;
    sums[0].of[1] += ranks_above(logit, c, of_label, target.label);
  });
  add_up_block(sums);
  if (threadIdx.y > 0) return;
  losses[blockIdx.x] = {target.weight * sums[0].of[0] / static_cast<float>(classes), sums[0].of[1]};
}

// d(mean loss) / d(logit) = sample's weight * (sigmoid(logit) - target probability) / (classes * global batch).
template <class T>
__global__ void binary_gradients(Predecessor previous, const T* logits, Labels labels, std::uint32_t classes,
                                 unsigned vectors, unsigned count, float smoothing, float sample_weight,
                                 const float* loss_scale, const float* sums, T* gradient, float* metrics) {
  await(previous);
  const float weight = sample_weight * *loss_scale / static_cast<float>(classes);
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    const unsigned row = static_cast<unsigned>(i) / vectors, first = static_cast<unsigned>(i) % vectors * kLanes<T>;
    const Target target = target_of(labels, row);
    Vector<T> values = load(logits, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      const unsigned c = first + k;
      const float sigmoid = 1 / (1 + expf(-values.at[k]));
      const float wanted = target_probability(target, c, smoothing, classes);
      values.at[k] = c < classes ? weight * target.weight * (sigmoid - wanted) : 0;
    }
    store(values, gradient, i);
  }
  if (grid_thread() < 2) metrics[grid_thread()] = sample_weight * sums[grid_thread()];
}

template <class T>
class BinaryCrossEntropyOp : public Op {
 public:
  BinaryCrossEntropyOp(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context)
      : context_(context),
        label_input_(inputs[1], mode, operation.smoothing, operation.class_weights),
        batch_(inputs[0].shape[0]),
        classes_(static_cast<std::uint32_t>(inputs[0].shape[1])),
        stride_(channels_last(inputs[0]).channels()),
        vectors_(vectors_of(channels_last(inputs[0]))),
        losses_(allocate_device(batch_ * sizeof(SampleLoss))) {
    info_.output = {{3}, DataType::f32, std::make_shared<Plain>(Shape{3}, DataType::f32)};
    info_.parameters = {{{2}, DataType::f32, std::make_shared<Plain>(Shape{2}, DataType::f32)}};
  }

  void bind(const Bindings& bindings) override {
    logits_ = data<T>(bindings.inputs[0]);
    labels_ = label_input_.of(bindings.inputs[1]);
    sums_ = data<float>(bindings.output);
    if (bindings.parameter_gradients.empty()) return;
    gradient_ = data<T>(bindings.input_gradients[0]);
    metrics_ = data<float>(bindings.parameter_gradients[0]);
  }

  void forward() override {
    auto* losses = data<SampleLoss>(losses_.view());
    launch(binary_losses<T>, static_cast<unsigned>(batch_), dim3(1, kSampleThreads), context_.lane.get(), logits_,
           labels_, classes_, stride_, label_input_.smoothing(), losses);
    add_up_samples(losses, batch_, sums_, context_.lane.get());
  }

  void backward(float sample_weight) override {
    launch(binary_gradients<T>, blocks_for(vectors_, kThreads, context_.multiprocessors), kThreads, context_.lane.get(),
           logits_, labels_, classes_, stride_ / kLanes<T>, vectors_, label_input_.smoothing(), sample_weight,
           context_.loss_scale, sums_, gradient_, metrics_);
  }

 private:
  Context& context_;
  LabelInput label_input_;
  std::size_t batch_;
  std::uint32_t classes_;
  std::size_t stride_;  // between consecutive samples' logits
  unsigned vectors_;    // in all logits
  Buffer losses_;
  const T* logits_ = nullptr;
  Labels labels_{};
  float* sums_ = nullptr;
  T* gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const BinaryCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, BinaryCrossEntropyOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
