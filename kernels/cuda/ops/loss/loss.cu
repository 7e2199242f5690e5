#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loss/class_labels.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kSampleThreads = 128;
constexpr unsigned kThreads = 256;

// A class's probability is exp(logit - largest) * inverse, with a sample's largest logit.
struct Softmax {
  float largest, inverse;
};

// The largest logit, and the label's.
struct Largest {
  float of_all, of_label;
};
__device__ Largest combined(const Largest& a, const Largest& b) {
  return {fmaxf(a.of_all, b.of_all), fmaxf(a.of_label, b.of_label)};
}

// Runs a block, a single column of threads, for each sample.
template <class T>
__global__ void softmax_losses(Predecessor previous, const T* logits, Labels labels, std::uint32_t classes,
                               std::size_t stride, float smoothing, Softmax* softmax, SampleLoss* losses) {
  await(previous);
  const T* row = logits + blockIdx.x * stride;
  const Target target = target_of(labels, blockIdx.x);
  const std::uint32_t label = target.label, other = target.other;
  Largest largest[1]{{-INFINITY, -INFINITY}};
  for_each_logit(row, classes, [&](float logit, std::uint32_t c) {
    largest[0] = combined(largest[0], {logit, c == label ? logit : -INFINITY});
  });
  add_up_block(largest);

  // Shifted by the largest logit, so that no exponential overflows. Sums exponentials, logits, both labels' logits, and
  // how many logits rank above the first label's.
  Sums<5> sums[1]{};
  for_each_logit(row, classes, [&](float logit, std::uint32_t c) {
    const float shifted = logit - largest[0].of_all;
    sums[0].of[0] += expf(shifted);
    sums[0].of[1] += shifted;
    if (c == label) sums[0].of[2] = shifted;
    if (c == other) sums[0].of[3] = shifted;
    sums[0].of[4] += ranks_above(logit, c, largest[0].of_label, label);
  });
  add_up_block(sums);
  if (threadIdx.y > 0) return;
  const auto [total, of_all, of_label, of_other, larger] = sums[0].of;
  float own = of_label;
  // Skipped without mixing and smoothing, because an impossible class may have an infinite logit.
  if (target.share < 1) own += (1 - target.share) * (of_other - of_label);
  float loss = logf(total) - own;
  if (smoothing > 0) loss += smoothing * (own - of_all / static_cast<float>(classes));
  softmax[blockIdx.x] = {largest[0].of_all, 1 / total};
  losses[blockIdx.x] = {target.weight * loss, larger};
}

// d(mean loss) / d(logits) = (probabilities - target probabilities) / global batch.
template <class T>
__global__ void softmax_gradients(Predecessor previous, const T* logits, Labels labels, std::uint32_t classes,
                                  unsigned vectors, unsigned count, float smoothing, const Softmax* softmax,
                                  float sample_weight, const float* loss_scale, const float* sums, T* gradient,
                                  float* metrics) {
  await(previous);
  const float weight = sample_weight * *loss_scale;
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    const unsigned row = static_cast<unsigned>(i) / vectors, first = static_cast<unsigned>(i) % vectors * kLanes<T>;
    const Softmax sample = softmax[row];
    const Target target = target_of(labels, row);
    Vector<T> values = load(logits, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      const unsigned c = first + k;
      const float wanted = target_probability(target, c, smoothing, classes);
      const float probability = expf(values.at[k] - sample.largest) * sample.inverse;
      values.at[k] = c < classes ? weight * target.weight * (probability - wanted) : 0;
    }
    store(values, gradient, i);
  }
  if (grid_thread() < 2) metrics[grid_thread()] = sample_weight * sums[grid_thread()];
}

template <class T>
class SoftmaxCrossEntropyOp : public Op {
 public:
  SoftmaxCrossEntropyOp(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context)
      : context_(context),
        label_input_(inputs[1], mode, operation.smoothing, operation.class_weights),
        batch_(inputs[0].shape[0]),
        classes_(static_cast<std::uint32_t>(inputs[0].shape[1])),
        stride_(channels_last(inputs[0]).channels()),
        vectors_(vectors_of(channels_last(inputs[0]))),
        softmax_(allocate_device(batch_ * sizeof(Softmax))),
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
    launch(softmax_losses<T>, static_cast<unsigned>(batch_), dim3(1, kSampleThreads), lane(), logits_, labels_,
           classes_, stride_, label_input_.smoothing(), data<Softmax>(softmax_.view()), losses());
    add_up_samples(losses(), batch_, sums_, lane());
  }

  void backward(float sample_weight) override {
    launch(softmax_gradients<T>, blocks_for(vectors_, kThreads, context_.multiprocessors), kThreads, lane(), logits_,
           labels_, classes_, stride_ / kLanes<T>, vectors_, label_input_.smoothing(), data<Softmax>(softmax_.view()),
           sample_weight, context_.loss_scale, sums_, gradient_, metrics_);
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }
  SampleLoss* losses() const { return data<SampleLoss>(losses_.view()); }

  Context& context_;
  LabelInput label_input_;
  std::size_t batch_;
  std::uint32_t classes_;
  std::size_t stride_;  // between consecutive samples' logits
  unsigned vectors_;    // in all logits
  Buffer softmax_, losses_;
  const T* logits_ = nullptr;
  Labels labels_{};
  float* sums_ = nullptr;
  T* gradient_ = nullptr;
  float* metrics_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const SoftmaxCrossEntropy& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, SoftmaxCrossEntropyOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
