#include <cstdint>

#include "kernels/base/mixed_label.h"
#include "kernels/cuda/ops/column_sums.h"
#include "kernels/cuda/ops/limits.h"
#include "kernels/cuda/ops/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kSampleThreads = 128;
constexpr unsigned kThreads = 256;

// A sample's results for the following kernels. With `largest` its largest logit, a class's probability is
// exp(logit - largest) * inverse.
struct Sample {
  float largest, inverse, loss;
  float larger;  // number of logits that are larger than the label's
};

// The labels of all samples, mixed or not.
struct Labels {
  const std::int32_t* plain;
  const MixedLabel* mixed;

  __device__ MixedLabel operator[](std::size_t sample) const {
    if (mixed != nullptr) return mixed[sample];
    return {plain[sample], plain[sample], MixedLabel::kWhole};
  }
};
__device__ float share_of_label(const MixedLabel& label) {
  return static_cast<float>(label.share) / MixedLabel::kWhole;
}

// The largest logit, and the label's.
struct Largest {
  float of_all, of_label;
};
__device__ Largest combined(const Largest& a, const Largest& b) {
  return {fmaxf(a.of_all, b.of_all), fmaxf(a.of_label, b.of_label)};
}

struct Totals {
  double loss;
  std::uint32_t first, among_top;
};
__device__ Totals combined(const Totals& a, const Totals& b) {
  return {a.loss + b.loss, a.first + b.first, a.among_top + b.among_top};
}

// Calls body(logit, class) for the thread's share of a row's logits.
template <class T, class Body>
__device__ void for_each_logit(const T* logits, std::uint32_t classes, const Body& body) {
  for (std::uint32_t first = threadIdx.y * kLanes<T>; first < classes; first += blockDim.y * kLanes<T>) {
    const Vector<T> values = load(logits, first / kLanes<T>);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      if (first + k < classes) body(values.at[k], first + k);
  }
}

// Runs one block, a single column of threads, for each sample.
template <class T>
__global__ void softmax_losses(const T* logits, Labels labels, std::uint32_t classes, std::size_t stride,
                               float smoothing, Sample* samples) {
  const T* row = logits + blockIdx.x * stride;
  const MixedLabel target = labels[blockIdx.x];
  const auto label = static_cast<std::uint32_t>(target.label), other = static_cast<std::uint32_t>(target.other);
  Largest largest[1]{{-INFINITY, -INFINITY}};
  for_each_logit(row, classes, [&](float logit, std::uint32_t c) {
    largest[0] = combined(largest[0], {logit, c == label ? logit : -INFINITY});
  });
  add_up_block(largest);

  // Shifted by the largest logit, so that no exponential overflows. The sums are of exponentials, of logits, the
  // labels' logits, and the number of logits ranked above the first label's: of equal ones the first ranks higher, and
  // NaN ranks above any.
  Sums<5> sums[1]{};
  for_each_logit(row, classes, [&](float logit, std::uint32_t c) {
    const float shifted = logit - largest[0].of_all;
    sums[0].of[0] += expf(shifted);
    sums[0].of[1] += shifted;
    if (c == label) sums[0].of[2] = shifted;
    if (c == other) sums[0].of[3] = shifted;
    sums[0].of[4] += c < label ? !(logit < largest[0].of_label) : !(logit <= largest[0].of_label);
  });
  add_up_block(sums);
  if (threadIdx.y > 0) return;
  const auto [total, of_all, of_label, of_other, larger] = sums[0].of;
  float own = of_label;
  // Skipped without mixing and smoothing, because the logit of an impossible class may be infinite.
  if (target.share < MixedLabel::kWhole) own += (1 - share_of_label(target)) * (of_other - of_label);
  float loss = logf(total) - own;
  if (smoothing > 0) loss += smoothing * (own - of_all / static_cast<float>(classes));
  samples[blockIdx.x] = {largest[0].of_all, 1 / total, loss, larger};
}

// Runs one block with a single column of threads, so the order of the sums depends only on the batch.
__global__ void add_up_samples(const Sample* samples, std::size_t batch, float* sums) {
  Totals totals[1]{};
  for (std::size_t i = threadIdx.y; i < batch; i += blockDim.y)
    totals[0] =
        combined(totals[0], {samples[i].loss, samples[i].larger < 1, samples[i].larger < SoftmaxCrossEntropy::kTop});
  add_up_block(totals);
  if (threadIdx.y > 0) return;
  sums[0] = static_cast<float>(totals[0].loss);
  sums[1] = static_cast<float>(totals[0].first);
  sums[2] = static_cast<float>(totals[0].among_top);
}

// d(mean loss) / d(logits) = (probabilities - target probabilities) / global batch.
template <class T>
__global__ void softmax_gradients(const T* logits, Labels labels, std::uint32_t classes, unsigned vectors,
                                  unsigned count, float smoothing, const Sample* samples, float sample_weight,
                                  const float* loss_scale, const float* sums, T* gradient, float* metrics) {
  const float weight = sample_weight * *loss_scale, everywhere = smoothing / static_cast<float>(classes);
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    const unsigned row = static_cast<unsigned>(i) / vectors, first = static_cast<unsigned>(i) % vectors * kLanes<T>;
    const Sample sample = samples[row];
    const MixedLabel target = labels[row];
    const auto label = static_cast<std::uint32_t>(target.label), other = static_cast<std::uint32_t>(target.other);
    const float share = (1 - smoothing) * share_of_label(target), others = 1 - smoothing - share;
    Vector<T> values = load(logits, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      const unsigned c = first + k;
      const float wanted = everywhere + (c == label ? share : 0) + (c == other ? others : 0);
      const float probability = expf(values.at[k] - sample.largest) * sample.inverse;
      values.at[k] = c < classes ? weight * (probability - wanted) : 0;
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
        smoothing_(mode == Mode::training ? operation.smoothing : 0),
        batch_(inputs[0].shape[0]),
        classes_(static_cast<std::uint32_t>(inputs[0].shape[1])),
        stride_(channels_last(inputs[0]).channels()),
        vectors_(vectors_of(channels_last(inputs[0]))),
        mixed_(inputs[1].shape.size() == 2),
        samples_(allocate_device(batch_ * sizeof(Sample))) {
    info_.output = {{3}, DataType::f32, std::make_shared<Plain>(Shape{3}, DataType::f32)};
    info_.parameters = {{{2}, DataType::f32, std::make_shared<Plain>(Shape{2}, DataType::f32)}};
  }

  void bind(const Bindings& bindings) override {
    logits_ = data<T>(bindings.inputs[0]);
    labels_ = {data<std::int32_t>(bindings.inputs[1]), nullptr};
    if (mixed_) labels_ = {nullptr, data<MixedLabel>(bindings.inputs[1])};
    sums_ = data<float>(bindings.output);
    if (bindings.parameter_gradients.empty()) return;
    gradient_ = data<T>(bindings.input_gradients[0]);
    metrics_ = data<float>(bindings.parameter_gradients[0]);
  }

  void forward() override {
    launch(softmax_losses<T>, static_cast<unsigned>(batch_), dim3(1, kSampleThreads), lane(), logits_, labels_,
           classes_, stride_, smoothing_, samples());
    launch(add_up_samples, 1, dim3(1, kThreads), lane(), samples(), batch_, sums_);
  }

  void backward(float sample_weight) override {
    launch(softmax_gradients<T>, blocks_for(vectors_, kThreads, context_.multiprocessors), kThreads, lane(), logits_,
           labels_, classes_, stride_ / kLanes<T>, vectors_, smoothing_, samples(), sample_weight, context_.loss_scale,
           sums_, gradient_, metrics_);
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }
  Sample* samples() const { return data<Sample>(samples_.view()); }

  Context& context_;
  float smoothing_;
  std::size_t batch_;
  std::uint32_t classes_;
  std::size_t stride_;  // between the logits of consecutive samples
  unsigned vectors_;    // of all logits
  bool mixed_;
  Buffer samples_;
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
