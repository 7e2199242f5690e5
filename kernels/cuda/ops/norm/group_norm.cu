// Group normalization over {batch, pixels, channels'}. Both passes add up each channel in each sample, combine a
// group's channels, and write y = factor x + offset or dx = factor dy + slope x + intercept.

#include <algorithm>

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 128;

// For each channel' in each sample, in float32: {batch, channels'}.
struct Statistics {
  static constexpr std::size_t kArrays = 7;

  float *mean, *inverse;            // the group's, and 1 / sqrt(variance + epsilon)
  float *factor, *offset;           // output = factor input + offset
  float *gain, *slope, *intercept;  // input's gradient = gain output's + slope input + intercept

  Statistics(float* memory, std::size_t count)
      : mean(memory),
        inverse(memory + count),
        factor(memory + 2 * count),
        offset(memory + 3 * count),
        gain(memory + 4 * count),
        slope(memory + 5 * count),
        intercept(memory + 6 * count) {}
};

// blockIdx.z is the sample; rows are pixels in it.
template <class T>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    channel_moments(Predecessor previous, Columns pixels, const T* input, Moments* partial) {
  await(previous);
  constexpr unsigned kBatch = 4;
  const T* sample = input + blockIdx.z * pixels.rows * pixels.channels;
  // Adds up distances to the thread's first value, because their squares are small.
  Packed<T> values[kBatch];
  Vector<T> first{}, sums{}, squares{};
  float count = 0;
  for_each_row<kBatch>(
      pixels, false, [&](unsigned k, std::size_t index) { values[k] = fetch(sample, index); },
      [&](unsigned k, std::size_t) {
        const Vector<T> value = unpacked<T>(values[k]);
        if (count == 0) first = value;
        count += 1;
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          const float distance = value.at[i] - first.at[i];
          sums.at[i] += distance;
          squares.at[i] += distance * distance;
        }
      });
  Moments moments[kLanes<T>]{};
  if (count > 0)
    for (unsigned i = 0; i < kLanes<T>; ++i) {
      const float mean = sums.at[i] / count;
      moments[i] = {count, first.at[i] + mean, squares.at[i] - sums.at[i] * mean};
    }
  store_block_sums(pixels, moments, partial + std::size_t{blockIdx.z} * pixels.stripes * pixels.channels);
}

// Runs a block with a single column of threads for each group (blockIdx.x) in each sample (blockIdx.y), with `each`
// channels.
__global__ void finish_groups(Predecessor previous, Columns pixels, unsigned each, const Moments* partial,
                              const float* scale, const float* shift, float epsilon, Statistics statistics) {
  await(previous);
  const unsigned begin = blockIdx.x * each;
  const std::size_t sample = blockIdx.y;
  partial += sample * pixels.stripes * pixels.channels;
  Moments moments[1]{};
  for (unsigned i = threadIdx.y; i < pixels.stripes * each; i += blockDim.y)
    moments[0] = combined(moments[0], partial[std::size_t{i / each} * pixels.channels + begin + i % each]);
  add_up_block(moments);
  const float variance = moments[0].squares / moments[0].count;
  const float mean = moments[0].mean, inverse = 1 / sqrtf((variance < 0 ? 0 : variance) + epsilon);
  for (unsigned c = begin + threadIdx.y; c < begin + each; c += blockDim.y) {
    const std::size_t at = sample * pixels.channels + c;
    statistics.mean[at] = mean;
    statistics.inverse[at] = inverse;
    statistics.factor[at] = scale[c] * inverse;
    statistics.offset[at] = shift[c] - mean * scale[c] * inverse;
  }
}

// The index in the statistics for a vector of channels.
__device__ inline std::size_t statistics_at(std::size_t index, const Columns& pixels) {
  return index / pixels.vectors / pixels.rows * pixels.vectors + index % pixels.vectors;
}

template <class T>
__global__ void apply(Predecessor previous, Columns pixels, Statistics statistics, const T* input, T* output,
                      std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t at = statistics_at(i, pixels) * kLanes<T>;
    const auto factor = load_floats<kLanes<T>>(statistics.factor + at);
    const auto offset = load_floats<kLanes<T>>(statistics.offset + at);
    Vector<T> values = load(input, i);
    for (unsigned k = 0; k < kLanes<T>; ++k) values.at[k] = values.at[k] * factor.at[k] + offset.at[k];
    store(values, output, i);
  }
}

// With n the normalized input: sums dy n and dy.
template <class T>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    channel_sums(Predecessor previous, Columns pixels, Statistics statistics, const T* input, const T* output_gradient,
                 Sums<2>* partial) {
  await(previous);
  constexpr unsigned kBatch = 2;
  const std::size_t sample = blockIdx.z, first = sample * pixels.rows * pixels.channels;
  Floats<kLanes<T>> mean{}, inverse{};
  if (own_vector() < pixels.vectors) {
    const std::size_t at = sample * pixels.channels + own_vector() * kLanes<T>;
    mean = load_floats<kLanes<T>>(statistics.mean + at);
    inverse = load_floats<kLanes<T>>(statistics.inverse + at);
  }
  Sums<2> sums[kLanes<T>]{};
  Packed<T> inputs[kBatch], gradients[kBatch];
  for_each_row<kBatch>(
      pixels, false,
      [&](unsigned k, std::size_t index) {
        inputs[k] = fetch(input + first, index);
        gradients[k] = fetch(output_gradient + first, index);
      },
      [&](unsigned k, std::size_t) {
        const Vector<T> x = unpacked<T>(inputs[k]), dy = unpacked<T>(gradients[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          sums[i].of[0] += dy.at[i] * (x.at[i] - mean.at[i]) * inverse.at[i];
          sums[i].of[1] += dy.at[i];
        }
      });
  store_block_sums(pixels, sums, partial + sample * pixels.stripes * pixels.channels);
}

// With g = dy scale: dx = inverse (g - mean(g) - n mean(g n)). Blocks as in finish_groups(). Leaves each channel's sums
// in the first stripe.
__global__ void finish_group_sums(Predecessor previous, Columns pixels, unsigned each, Sums<2>* partial,
                                  const float* scale, Statistics statistics) {
  await(previous);
  const unsigned begin = blockIdx.x * each;
  const std::size_t sample = blockIdx.y;
  partial += sample * pixels.stripes * pixels.channels;
  Sums<2> sums[1]{};
  for (unsigned c = begin + threadIdx.y; c < begin + each; c += blockDim.y) {
    Sums<2> sum{};
    for (unsigned stripe = 0; stripe < pixels.stripes; ++stripe)
      sum = combined(sum, partial[std::size_t{stripe} * pixels.channels + c]);
    partial[c] = sum;
    for (unsigned i = 0; i < 2; ++i) sums[0].of[i] += scale[c] * sum.of[i];
  }
  add_up_block(sums);
  const float size = static_cast<float>(each) * static_cast<float>(pixels.rows);
  for (unsigned c = begin + threadIdx.y; c < begin + each; c += blockDim.y) {
    const std::size_t at = sample * pixels.channels + c;
    const float mean = statistics.mean[at], inverse = statistics.inverse[at];
    const float slope = -inverse * inverse * sums[0].of[0] / size;
    statistics.gain[at] = inverse * scale[c];
    statistics.slope[at] = slope;
    statistics.intercept[at] = -inverse * sums[0].of[1] / size - slope * mean;
  }
}

__global__ void add_up_batch(Predecessor previous, Columns pixels, std::size_t batch, unsigned channels,
                             const Sums<2>* partial, const float* unscale, float* scale_gradient,
                             float* shift_gradient) {
  await(previous);
  for (std::size_t c = grid_thread(); c < channels; c += grid_threads()) {
    Sums<2> sum{};
    for (std::size_t n = 0; n < batch; ++n) sum = combined(sum, partial[n * pixels.stripes * pixels.channels + c]);
    scale_gradient[c] = *unscale * sum.of[0];
    shift_gradient[c] = *unscale * sum.of[1];
  }
}

template <class T>
__global__ void apply_backward(Predecessor previous, Columns pixels, Statistics statistics, const T* input,
                               const T* output_gradient, InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const std::size_t at = statistics_at(i, pixels) * kLanes<T>;
    const auto gain = load_floats<kLanes<T>>(statistics.gain + at);
    const auto slope = load_floats<kLanes<T>>(statistics.slope + at);
    const auto intercept = load_floats<kLanes<T>>(statistics.intercept + at);
    const Vector<T> x = load(input, i);
    Vector<T> gradient = load(output_gradient, i);
    for (unsigned k = 0; k < kLanes<T>; ++k)
      gradient.at[k] = gain.at[k] * gradient.at[k] + slope.at[k] * x.at[k] + intercept.at[k];
    to.put(gradient, i);
  }
}

template <class T>
class GroupNormOp : public Op {
 public:
  GroupNormOp(const GroupNorm& operation, const TensorSpec& input, Context& context)
      : context_(context),
        epsilon_(operation.epsilon),
        batch_(input.shape[0]),
        channels_(static_cast<unsigned>(input.shape[1])),
        groups_(static_cast<unsigned>(operation.groups)),
        vectors_(vectors_of(channels_last(input))),
        pixels_(channels_last(input).pixels(), channels_last(input).channels(), kLanes<T>,
                std::max(1, context.multiprocessors / static_cast<int>(batch_))),
        arrays_(allocate_device(Statistics::kArrays * batch_ * pixels_.channels * sizeof(float))),
        statistics_(data<float>(arrays_.view()), batch_ * pixels_.channels) {
    info_.output = input;
    info_.inputs = {{.gradient_may_overwrite = true, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    info_.parameters.assign(2, channels_spec({input.shape[1]}, context.type()));
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    workspace_ = context_.workspace(batch_ * pixels_.partial_sums() * std::max(sizeof(Moments), sizeof(Sums<2>)));
  }

  void forward() override {
    auto* partial = static_cast<Moments*>(workspace_);
    const T* input = data<T>(bindings_.inputs[0]);
    launch(channel_moments<T>, sample_grid(), pixels_.block(), lane(), pixels_, input, partial);
    launch(finish_groups, group_grid(), dim3(1, kThreads), lane(), pixels_, channels_ / groups_, partial, scale(),
           data<float>(bindings_.parameters[1]), epsilon_, statistics_);
    over_vectors(apply<T>, vectors_, context_, pixels_, statistics_, input, data<T>(bindings_.output));
  }

  void backward(float) override {
    auto* partial = static_cast<Sums<2>*>(workspace_);
    const T *input = data<T>(bindings_.inputs[0]), *gradient = data<T>(bindings_.output_gradient);
    launch(channel_sums<T>, sample_grid(), pixels_.block(), lane(), pixels_, statistics_, input, gradient, partial);
    launch(finish_group_sums, group_grid(), dim3(1, kThreads), lane(), pixels_, channels_ / groups_, partial, scale(),
           statistics_);
    launch(add_up_batch, blocks_for(channels_, kThreads, context_.multiprocessors), kThreads, lane(), pixels_, batch_,
           channels_, partial, context_.unscale, data<float>(bindings_.parameter_gradients[0]),
           data<float>(bindings_.parameter_gradients[1]));
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_vectors(apply_backward<T>, vectors_, context_, pixels_, statistics_, input, gradient, to);
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }
  const float* scale() const { return data<float>(bindings_.parameters[0]); }
  dim3 sample_grid() const {
    const dim3 grid = pixels_.grid();
    return {grid.x, grid.y, static_cast<unsigned>(batch_)};
  }
  dim3 group_grid() const { return {groups_, static_cast<unsigned>(batch_)}; }

  Context& context_;
  float epsilon_;
  std::size_t batch_;
  unsigned channels_, groups_;
  std::size_t vectors_;
  Columns pixels_;  // in a sample
  Buffer arrays_;   // zero for padding
  Statistics statistics_;
  Bindings bindings_;
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const GroupNorm& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, GroupNormOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
