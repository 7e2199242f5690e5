#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kSampleThreads = 128;
constexpr unsigned kThreads = 256;

// A loss's terms, summed over a sample's values: the loss, and the sum from which measure() makes the sample's measure.

// The terms for MultiLabelCrossEntropy. The measure counts classes that are predicted incorrectly.
struct BinaryTerms {
  // -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = log(1 + exp(x)) - t x, without overflow.
  __device__ static Sums<2> of(float x, float t) {
    return {{fmaxf(x, 0) + log1pf(expf(-fabsf(x))) - t * x, (x > 0) == (t > 0.5f) ? 0.0f : 1.0f}};
  }
  __device__ static float gradient(float x, float t) { return 1 / (1 + expf(-x)) - t; }
  __device__ static float measure(float incorrect, float /*width*/) { return incorrect == 0; }
};

// The terms for MeanSquaredError. The measure adds up absolute errors.
struct SquaredTerms {
  __device__ static Sums<2> of(float x, float t) { return {{(x - t) * (x - t), fabsf(x - t)}}; }
  __device__ static float gradient(float x, float t) { return 2 * (x - t); }
  __device__ static float measure(float errors, float width) { return errors / width; }
};

// Runs a block, a single column of threads, for each sample: writes the sample's loss and measure. `stride`: between
// consecutive samples' values.
template <class T, class Terms>
__global__ void target_losses(Predecessor previous, const T* values, const float* targets, std::uint32_t width,
                              std::size_t stride, Sums<2>* samples) {
  await(previous);
  const T* row = values + blockIdx.x * stride;
  const float* wanted = targets + std::size_t{blockIdx.x} * width;
  Sums<2> sums[1]{};
  for (std::uint32_t first = threadIdx.y * kLanes<T>; first < width; first += blockDim.y * kLanes<T>) {
    const Vector<T> some = load(row, first / kLanes<T>);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      if (first + k < width) sums[0] = combined(sums[0], Terms::of(some.at[k], wanted[first + k]));
  }
  add_up_block(sums);
  if (threadIdx.y > 0) return;
  const auto count = static_cast<float>(width);
  samples[blockIdx.x] = {{sums[0].of[0] / count, Terms::measure(sums[0].of[1], count)}};
}

struct Totals {
  double loss, measure;
};
__device__ Totals combined(const Totals& a, const Totals& b) {
  return {a.loss + b.loss, a.measure + b.measure};
}

// Runs a block with a single column of threads, so the order of the sums depends only on the batch.
__global__ void add_up_targets(Predecessor previous, const Sums<2>* samples, std::size_t batch, float* sums) {
  await(previous);
  Totals totals[1]{};
  for (std::size_t i = threadIdx.y; i < batch; i += blockDim.y)
    totals[0] = combined(totals[0], {samples[i].of[0], samples[i].of[1]});
  add_up_block(totals);
  if (threadIdx.y > 0) return;
  sums[0] = static_cast<float>(totals[0].loss);
  sums[1] = static_cast<float>(totals[0].measure);
}

template <class T, class Terms>
__global__ void target_gradients(Predecessor previous, const T* values, const float* targets, std::uint32_t width,
                                 unsigned vectors, unsigned count, float sample_weight, const float* loss_scale,
                                 const float* sums, T* gradient, float* metrics) {
  await(previous);
  const float weight = sample_weight * *loss_scale / static_cast<float>(width);
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    const unsigned row = static_cast<unsigned>(i) / vectors, first = static_cast<unsigned>(i) % vectors * kLanes<T>;
    const float* wanted = targets + std::size_t{row} * width;
    Vector<T> some = load(values, i);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      some.at[k] = first + k < width ? weight * Terms::gradient(some.at[k], wanted[first + k]) : 0;
    store(some, gradient, i);
  }
  if (grid_thread() < 2) metrics[grid_thread()] = sample_weight * sums[grid_thread()];
}

template <class T, class Terms>
class TargetLossOp : public Op {
 public:
  TargetLossOp(const TensorSpec& values, Context& context)
      : context_(context),
        batch_(values.shape[0]),
        width_(static_cast<std::uint32_t>(values.shape[1])),
        stride_(channels_last(values).channels()),
        vectors_(vectors_of(channels_last(values))),
        samples_(allocate_device(batch_ * sizeof(Sums<2>))) {
    info_.output = {{2}, DataType::f32, std::make_shared<Plain>(Shape{2}, DataType::f32)};
    info_.parameters = {{{2}, DataType::f32, std::make_shared<Plain>(Shape{2}, DataType::f32)}};
  }

  void bind(const Bindings& bindings) override {
    values_ = data<T>(bindings.inputs[0]);
    targets_ = data<float>(bindings.inputs[1]);
    sums_ = data<float>(bindings.output);
    if (bindings.parameter_gradients.empty()) return;
    gradient_ = data<T>(bindings.input_gradients[0]);
    metrics_ = data<float>(bindings.parameter_gradients[0]);
  }

  void forward() override {
    auto* samples = data<Sums<2>>(samples_.view());
    launch(target_losses<T, Terms>, static_cast<unsigned>(batch_), dim3(1, kSampleThreads), context_.lane.get(),
           values_, targets_, width_, stride_, samples);
    launch(add_up_targets, 1, dim3(1, kThreads), context_.lane.get(), samples, batch_, sums_);
  }

  void backward(float sample_weight) override {
    launch(target_gradients<T, Terms>, blocks_for(vectors_, kThreads, context_.multiprocessors), kThreads,
           context_.lane.get(), values_, targets_, width_, stride_ / kLanes<T>, vectors_, sample_weight,
           context_.loss_scale, sums_, gradient_, metrics_);
  }

 private:
  Context& context_;
  std::size_t batch_;
  std::uint32_t width_;
  std::size_t stride_;  // between consecutive samples' values
  unsigned vectors_;    // in all values
  Buffer samples_;
  const T* values_ = nullptr;
  const float* targets_ = nullptr;
  float* sums_ = nullptr;
  T* gradient_ = nullptr;
  float* metrics_ = nullptr;
};

template <class T>
using MultiLabelCrossEntropyOp = TargetLossOp<T, BinaryTerms>;
template <class T>
using MeanSquaredErrorOp = TargetLossOp<T, SquaredTerms>;

}  // namespace

std::unique_ptr<Op> plan(const MultiLabelCrossEntropy&, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, MultiLabelCrossEntropyOp>(context.type(), inputs[0], context);
}

std::unique_ptr<Op> plan(const MeanSquaredError&, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, MeanSquaredErrorOp>(context.type(), inputs[0], context);
}

}  // namespace annulus::cuda
