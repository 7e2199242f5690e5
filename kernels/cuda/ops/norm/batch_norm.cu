// Batch normalization, optionally with the addition and the ReLU at the end of a residual block. All is bound by
// memory: forward reads the input twice and writes the output, and backward reads the input and the output's gradient
// twice and writes the input's gradient. (The two passes cannot be merged: every value depends on the statistics.) An
// addition accesses a further value in forward and in backward. A ReLU stores a bit for each value, instead of reading
// the output again. Neighbouring convolutions may do forward's passes and backward's first, and a max pool after the
// norm the pass that writes the output (fusible_norm.h).

#include <optional>
#include <type_traits>
#include <vector>

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/plan/fusible_norm.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/cuda/ops/pool/max_pool.h"

namespace annulus::cuda {
namespace {

enum Index { kScale, kShift, kMean, kVariance, kCount };
constexpr unsigned kChannelThreads = 128;  // in kernels with a thread for each channel

unsigned channel_blocks(unsigned channels) {
  return (channels + kChannelThreads - 1) / kChannelThreads;
}

// For each channel, in float32: results that a pass leaves to another.
struct Statistics {
  static constexpr std::size_t kArrays = 7;

  float *mean, *variance, *inverse;  // the batch's, and 1 / sqrt(variance + epsilon)
  float *factor, *offset;            // output = factor input + offset
  float *slope, *intercept;          // input's gradient = factor output's + slope input + intercept
  // The factor and the offset in 16 bits, if the next operation computes the output, else null. Then the float32 factor
  // and offset are rounded, too, so that backward differentiates what that operation computes.
  __half *scale16 = nullptr, *shift16 = nullptr;
  // The ReLU's input as a function of (input - mean) inverse, lower by kShiftBelowZero, if the next operation computes
  // gradient sums, else null.
  float *scale_normalized = nullptr, *shift_normalized = nullptr;

  Statistics(float* memory, std::size_t channels)
      : mean(memory),
        variance(memory + channels),
        inverse(memory + 2 * channels),
        factor(memory + 3 * channels),
        offset(memory + 4 * channels),
        slope(memory + 5 * channels),
        intercept(memory + 6 * channels) {}

  __device__ void set_forward(unsigned channel, float scale, float shift, float mean_, float variance_, float epsilon) {
    mean[channel] = mean_;
    variance[channel] = variance_;
    inverse[channel] = 1 / sqrtf(variance_ + epsilon);
    factor[channel] = scale * inverse[channel];
    if (scale16 != nullptr) factor[channel] = static_cast<float>(scale16[channel] = __half(factor[channel]));
    offset[channel] = shift - mean_ * factor[channel];
    if (shift16 != nullptr) offset[channel] = static_cast<float>(shift16[channel] = __half(offset[channel]));
    if (scale_normalized == nullptr) return;
    scale_normalized[channel] = factor[channel] / inverse[channel];
    shift_normalized[channel] = offset[channel] + factor[channel] * mean_ + kShiftBelowZero;
  }

  // With d the input's distance to the mean and n values, the input's gradient is
  //   scale inverse (gradient - sum(gradient) / n - d inverse^2 sum(gradient d) / n).
  __device__ void set_backward(unsigned channel, const Sums<2>& sums, float values) {
    slope[channel] = -factor[channel] * inverse[channel] * inverse[channel] * sums.of[1] / values;
    intercept[channel] = -factor[channel] * sums.of[0] / values - slope[channel] * mean[channel];
  }
};

// What a synchronized batch norm all-reduces: two sums for each channel, and how many images they cover. (The value
// count would be too large for float32.)
struct SharedSums {
  float* memory;
  unsigned channels;

  std::size_t bytes() const { return (2 * std::size_t{channels} + 1) * sizeof(float); }
  __device__ void set(unsigned channel, const Sums<2>& sums) {
    for (unsigned i = 0; i < 2; ++i) memory[i * channels + channel] = sums.of[i];
  }
  __device__ Sums<2> of(unsigned channel) const { return {{memory[channel], memory[channels + channel]}}; }
  __device__ float& images() const { return memory[2 * channels]; }
};

// What a channel's moments are used for: they are the batch's, or this rank's part in a synchronized batch norm. The
// latter shares the sums of distances to the running mean, which is the same on all ranks, and of squared distances.
// Means close to it lose no precision.
struct UseMoments {
  const float *scale, *shift, *running_mean;
  float epsilon, images;
  Statistics statistics;
  SharedSums shared;  // only if synchronized

  __device__ void operator()(unsigned channel, const Moments& moments) {
    if (shared.memory == nullptr) {
      const float variance = moments.squares / moments.count;
      statistics.set_forward(channel, scale[channel], shift[channel], moments.mean, variance < 0 ? 0 : variance,
                             epsilon);
      return;
    }
    const float distance = moments.mean - running_mean[channel], sum = moments.count * distance;
    shared.set(channel, {{sum, moments.squares + sum * distance}});
    if (channel == 0) shared.images() = images;
  }
};

template <class T>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    batch_moments(Predecessor previous, Columns columns, const T* input, Moments* partial, unsigned* counters,
                  UseMoments use) {
  await(previous);
  constexpr unsigned kBatch = 4;
  // Adds up distances to the thread's first value instead of values, because their squares are small.
  Packed<T> values[kBatch];
  Vector<T> first{}, sums{}, squares{};
  float count = 0;
  for_each_row<kBatch>(
      columns, false, [&](unsigned k, std::size_t index) { values[k] = fetch(input, index); },
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
  add_up_columns(columns, moments, partial, counters, use);
}

// The same from the sums that a convolution computed.
__global__ void moments_of_convolution(Predecessor previous, unsigned channels, float count,
                                       FusibleNorm::ChannelSums sums, UseMoments use) {
  await(previous);
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const float mean = sums.values[channel] / count;
  use(channel, Moments{count, mean, sums.squares[channel] - sums.values[channel] * mean});
}

__global__ void finish_shared_forward(Predecessor previous, SharedSums shared, float pixels, const float* running_mean,
                                      const float* scale, const float* shift, float epsilon, Statistics statistics) {
  await(previous);
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel >= shared.channels) return;
  const float values = pixels * shared.images();
  const Sums<2> sums = shared.of(channel);
  const float distance = sums.of[0] / values, variance = sums.of[1] / values - distance * distance;
  statistics.set_forward(channel, scale[channel], shift[channel], running_mean[channel] + distance,
                         variance < 0 ? 0 : variance, epsilon);
}

__global__ void prepare_inference(Predecessor previous, unsigned channels, const float* scale, const float* shift,
                                  const float* mean, const float* variance, float epsilon, Statistics statistics) {
  await(previous);
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < channels)
    statistics.set_forward(channel, scale[channel], shift[channel], mean[channel], variance[channel], epsilon);
}

// output = factor input + offset (+ addend), then ReLU if `rectify`; `positive` receives a bit for each positive value.
template <class T, bool add, bool rectify>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    normalize(Predecessor previous, Columns columns, const T* __restrict__ input, const T* __restrict__ addend,
              Statistics statistics, T* __restrict__ output, std::uint8_t* __restrict__ positive) {
  await(previous);
  constexpr unsigned kBatch = 3;
  if (own_vector() >= columns.vectors) return;
  const auto factor = load_floats<kLanes<T>>(statistics.factor + own_vector() * kLanes<T>);
  const auto offset = load_floats<kLanes<T>>(statistics.offset + own_vector() * kLanes<T>);
  Packed<T> values[kBatch], addends[kBatch];
  for_each_row<kBatch>(
      columns, true,
      [&](unsigned k, std::size_t index) {
        values[k] = fetch(input, index);
        if constexpr (add) addends[k] = fetch(addend, index);
      },
      [&](unsigned k, std::size_t index) {
        const Vector<T> in = unpacked<T>(values[k]);
        Vector<T> result, added{};
        if constexpr (add) added = unpacked<T>(addends[k]);
        unsigned bits = 0;
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          float value = factor.at[i] * in.at[i] + offset.at[i];
          if constexpr (add) value += added.at[i];
          if constexpr (rectify) {
            bits |= (value > 0 ? 1u : 0u) << i;
            value = relu(value);
          }
          result.at[i] = value;
        }
        store(result, output, index);
        if (rectify && positive != nullptr) positive[index] = static_cast<std::uint8_t>(bits);
      });
}

// How a backward pass finds out where the ReLU was active. Everywhere: there is none, or the gradient is already zero
// elsewhere. Stored: from the bit that forward stored for each value. Recomputed: from the output, computed again. In
// windows: the ReLU, if any, is a part of the max pool after it, and the gradient is gathered from the pool's windows.
enum class Active { everywhere, stored, recomputed, in_windows };

// The max pool after a batch norm, for Active::in_windows.
template <class T>
struct PoolAfter {
  Pool pool;
  const Numbers<T>* from;
};

// Returns a bit for each positive value of factor input + offset.
template <class T>
__device__ unsigned positive_bits(const Vector<T>& input, const Vector<T>& factor, const Vector<T>& offset) {
  unsigned bits = 0;
  for (unsigned i = 0; i < kLanes<T>; ++i) bits |= (factor.at[i] * input.at[i] + offset.at[i] > 0 ? 1u : 0u) << i;
  return bits;
}

// A vector of the output's gradient, as fetched from memory or gathered from windows.
template <class T, Active active>
using Fetched = std::conditional_t<active == Active::in_windows, Vector<T>, Packed<T>>;

template <class T, Active active>
__device__ Fetched<T, active> fetch_gradient(const T* gradient, const PoolAfter<T>& after, std::size_t index) {
  if constexpr (active == Active::in_windows)
    return pooled_gradient(after.pool, gradient, after.from, static_cast<unsigned>(index));
  else
    return fetch(gradient, index);
}

// Returns the output's gradient with zeros where the ReLU was inactive.
template <class T, Active active>
__device__ Vector<T> passed(const Fetched<T, active>& fetched, unsigned positive) {
  if constexpr (active == Active::in_windows) {
    return fetched;
  } else {
    Vector<T> gradient = unpacked<T>(fetched);
    if constexpr (active != Active::everywhere)
      for (unsigned i = 0; i < kLanes<T>; ++i) gradient.at[i] = positive >> i & 1 ? gradient.at[i] : 0;
    return gradient;
  }
}

// How many loads a thread has in flight in a backward pass. A gathered gradient takes more registers.
template <Active active>
constexpr unsigned kBackwardBatch = active == Active::in_windows ? 1 : 2;

// Where the parameters' gradients and this rank's contribution to the statistics go; all are null if none is needed.
struct ParameterGradients {
  float *scale, *shift, *mean, *variance;
  float weight;  // the statistics'

  // Inference needs the unbiased variance; the batch's is smaller by a factor of (n - 1) / n.
  __device__ void set(unsigned channel, const Sums<2>& sums, float unscale, const Statistics& statistics,
                      float values) {
    if (scale == nullptr) return;
    scale[channel] = unscale * statistics.inverse[channel] * sums.of[1];
    shift[channel] = unscale * sums.of[0];
    mean[channel] = weight * statistics.mean[channel];
    variance[channel] = weight * (values / (values > 1 ? values - 1 : 1)) * statistics.variance[channel];
  }
};

// What a channel's sums are used for. If the batch norm is synchronized, they are this rank's part of the sums that the
// input's gradient needs; the parameters' gradients are all-reduced later with all others.
struct UseGradientSums {
  float pixels, images;  // this rank's
  const float* unscale;
  bool frozen;  // the statistics do not depend on the input
  Statistics statistics;
  ParameterGradients to;
  SharedSums shared;  // only if synchronized

  __device__ void operator()(unsigned channel, const Sums<2>& sums) {
    const bool synchronized = shared.memory != nullptr;
    const float values = pixels * (synchronized ? shared.images() : images);
    to.set(channel, sums, *unscale, statistics, values);
    if (synchronized)
      shared.set(channel, sums);
    else
      statistics.set_backward(channel, frozen ? Sums<2>{} : sums, values);
  }
};

// Sums the gradient, and the gradient times the input's distance to the mean.
template <class T, Active active>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    gradient_sums(Predecessor previous, Columns columns, const T* __restrict__ input,
                  const T* __restrict__ output_gradient, const std::uint8_t* __restrict__ positive, PoolAfter<T> after,
                  Sums<2>* partial, unsigned* counters, UseGradientSums use) {
  await(previous);
  constexpr unsigned kBatch = kBackwardBatch<active>;
  Vector<T> mean{}, factor{}, offset{};
  if (own_vector() < columns.vectors) {
    mean = load_floats<kLanes<T>>(use.statistics.mean + own_vector() * kLanes<T>);
    if constexpr (active == Active::recomputed) {
      factor = load_floats<kLanes<T>>(use.statistics.factor + own_vector() * kLanes<T>);
      offset = load_floats<kLanes<T>>(use.statistics.offset + own_vector() * kLanes<T>);
    }
  }
  Sums<2> sums[kLanes<T>]{};
  Packed<T> values[kBatch];
  Fetched<T, active> gradients[kBatch];
  unsigned bits[kBatch]{};
  for_each_row<kBatch>(
      columns, false,
      [&](unsigned k, std::size_t index) {
        values[k] = fetch(input, index);
        gradients[k] = fetch_gradient<T, active>(output_gradient, after, index);
        if constexpr (active == Active::stored) bits[k] = positive[index];
      },
      [&](unsigned k, std::size_t) {
        const Vector<T> in = unpacked<T>(values[k]);
        if constexpr (active == Active::recomputed) bits[k] = positive_bits<T>(in, factor, offset);
        const Vector<T> gradient = passed<T, active>(gradients[k], bits[k]);
        for (unsigned i = 0; i < kLanes<T>; ++i) {
          sums[i].of[0] += gradient.at[i];
          sums[i].of[1] += gradient.at[i] * (in.at[i] - mean.at[i]);
        }
      });
  add_up_columns(columns, sums, partial, counters, use);
}

// The same from the sums that a convolution computed.
__global__ void gradient_sums_of_convolution(Predecessor previous, unsigned channels, NormGradient norm,
                                             UseGradientSums use) {
  await(previous);
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < channels)
    use(channel, Sums<2>{{norm.sum[channel], norm.normalized_sum[channel] / norm.inverse[channel]}});
}

__global__ void finish_shared_backward(Predecessor previous, SharedSums shared, float pixels, Statistics statistics) {
  await(previous);
  const unsigned channel = blockIdx.x * blockDim.x + threadIdx.x;
  if (channel < shared.channels) statistics.set_backward(channel, shared.of(channel), pixels * shared.images());
}

// Computes the gradients of the input and of the addend. (The addend's gradient may share memory with the output's,
// because a value is read before it is written. Or both may be the same array: the content that the addend's gradient
// is added to is read after the input's gradient has been written.)
template <class T, Active active>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    input_gradients(Predecessor previous, Columns columns, const T* input, const T* output_gradient,
                    const std::uint8_t* positive, PoolAfter<T> after, Statistics statistics, InputGradient<T> to,
                    InputGradient<T> to_addend) {
  await(previous);
  constexpr unsigned kBatch = kBackwardBatch<active>;
  if (own_vector() >= columns.vectors) return;
  const auto factor = load_floats<kLanes<T>>(statistics.factor + own_vector() * kLanes<T>);
  const auto slope = load_floats<kLanes<T>>(statistics.slope + own_vector() * kLanes<T>);
  const auto intercept = load_floats<kLanes<T>>(statistics.intercept + own_vector() * kLanes<T>);
  Vector<T> offset{};
  if constexpr (active == Active::recomputed)
    offset = load_floats<kLanes<T>>(statistics.offset + own_vector() * kLanes<T>);
  Packed<T> values[kBatch], there[kBatch];
  Fetched<T, active> gradients[kBatch];
  unsigned bits[kBatch]{};
  for_each_row<kBatch>(
      columns, true,
      [&](unsigned k, std::size_t index) {
        values[k] = fetch(input, index);
        gradients[k] = fetch_gradient<T, active>(output_gradient, after, index);
        there[k] = to.there(index);
        if constexpr (active == Active::stored) bits[k] = positive[index];
      },
      [&](unsigned k, std::size_t index) {
        const Vector<T> in = unpacked<T>(values[k]);
        if constexpr (active == Active::recomputed) bits[k] = positive_bits<T>(in, factor, offset);
        const Vector<T> gradient = passed<T, active>(gradients[k], bits[k]);
        if (to.wanted()) {
          Vector<T> result;
          for (unsigned i = 0; i < kLanes<T>; ++i)
            result.at[i] = factor.at[i] * gradient.at[i] + (slope.at[i] * in.at[i] + intercept.at[i]);
          to.put(result, index, there[k]);
        }
        if constexpr (active == Active::everywhere || active == Active::stored)  // with an addend; registers are scarce
          if (to_addend.wanted()) to_addend.put(gradient, index);
      });
}

template <class T>
class BatchNormOp : public Op, public FusibleNorm {
 public:
  BatchNormOp(const BatchNorm& operation, const Specs& inputs, Mode mode, Context& context)
      : operation_(operation),
        mode_(mode),
        context_(context),
        batch_(static_cast<float>(inputs[0].shape[0])),
        pixels_(static_cast<float>(channels_last(inputs[0]).pixels())),
        columns_(channels_last(inputs[0]).outer() * channels_last(inputs[0]).pixels(),
                 channels_last(inputs[0]).channels(), kLanes<T>, context.multiprocessors),
        own_(allocate_device(Statistics::kArrays * columns_.channels * sizeof(float))),
        counters_(allocate_device(columns_.counters() * sizeof(unsigned))),
        statistics_(data<float>(own_.view()), columns_.channels) {
    info_.output = value_spec(inputs[0].shape, context.type());
    info_.parameters.assign(kCount, channels_spec({inputs[0].shape[1]}, context.type()));
    info_.inputs.assign(inputs.size(), {.gradient_may_overwrite = true, .adds_to_gradient = true});
    if (operation.add) info_.inputs[1].backward_reads = false;
    info_.backward_reads_output = false;
    info_.skips_parameter_gradients = true;
    info_.sums_over_ranks = operation.synchronized && mode == Mode::training;
    if (info_.sums_over_ranks) {
      shared_.channels = columns_.channels;
      shared_memory_ = allocate_device(shared_.bytes());
      shared_.memory = data<float>(shared_memory_.view());
    }
    if (mode == Mode::training && operation.relu) positive_ = allocate_device(columns_.rows * columns_.vectors);
  }

  bool needs_statistics() const override { return uses_batch_statistics(); }
  ChannelSums take_statistics() override {
    sums_memory_ = allocate_device(2 * columns_.channels * sizeof(float));
    auto* sums = data<float>(sums_memory_.view());
    return sums_ = {sums, sums + columns_.channels};
  }

  Kind kind() const override {
    if (!operation_.relu && !operation_.add) return Kind::plain;
    if (mode_ == Mode::inference || !operation_.relu) return Kind::other;
    return operation_.add ? Kind::block_end : Kind::rectified;
  }
  ChannelFactors leave_output() override {
    factors_memory_ = allocate_device(2 * columns_.channels * sizeof(__half));
    statistics_.scale16 = data<__half>(factors_memory_.view());
    statistics_.shift16 = statistics_.scale16 + columns_.channels;
    positive_ = {};
    return {statistics_.scale16, statistics_.shift16};
  }
  void leave_stored_output() override {
    left_ = true;
    positive_ = {};
  }
  ChannelFactors stored_output_factors() const override { return {statistics_.factor, statistics_.offset}; }
  NormGradient take_gradient_sums() override {
    constexpr std::size_t kArrays = 7;
    gradient_memory_ = allocate_device(kArrays * columns_.channels * sizeof(float));
    const auto array = [&](std::size_t i) { return data<float>(gradient_memory_.view()) + i * columns_.channels; };
    if (operation_.add) {
      info_.inputs[0].gradient_may_overwrite = false;  // but the addend's, which is the same as the output's
      const std::vector<float> shift(columns_.channels, kShiftBelowZero);
      check(cudaMemcpy(array(1), shift.data(), shift.size() * sizeof(float), cudaMemcpyHostToDevice));
    } else {
      statistics_.scale_normalized = array(0);
      statistics_.shift_normalized = array(1);
    }
    positive_ = {};
    norm_gradient_ = {statistics_.mean, statistics_.inverse, array(0), array(1), array(2), array(3), array(4), array(5),
                      array(6)};
    return norm_gradient_;
  }

  OutputFactors leave_output_to_pool(const Pool& pool, const void* from) override {
    after_ = {pool, static_cast<const Numbers<T>*>(from)};
    info_.inputs[0].gradient_may_overwrite = false;  // the pool's is smaller, and read at other indices
    return {statistics_.factor, statistics_.offset};
  }

  void sum_over_ranks(const SumOverRanks& sum) override { sum_over_ranks_ = sum; }

  void bind(const Bindings& bindings) override {
    input_ = data<T>(bindings.inputs[0]);
    addend_ = operation_.add ? data<T>(bindings.inputs[1]) : nullptr;
    output_values_ = data<T>(bindings.output);
    for (std::size_t i = 0; i < kCount; ++i) parameter_values_[i] = data<float>(bindings.parameters[i]);
    if (mode_ == Mode::inference) return;
    for (std::size_t i = 0; i < kCount; ++i) parameter_gradients_[i] = data<float>(bindings.parameter_gradients[i]);
    output_gradient_ = data<T>(bindings.output_gradient);
    gradient_ = {bindings, 0};
    addend_gradient_ = operation_.add ? InputGradient<T>(bindings, 1) : InputGradient<T>{};
    if (passes_everywhere() && addend_gradient_.is(bindings.output_gradient)) addend_gradient_ = {};
    partial_ = context_.workspace(columns_.partial_sums() * sizeof(Moments));
  }

  void forward() override {
    const auto& p = parameter_values_;
    if (!uses_batch_statistics()) {
      launch(prepare_inference, channel_blocks(columns_.channels), kChannelThreads, lane(), columns_.channels,
             p[kScale], p[kShift], p[kMean], p[kVariance], operation_.epsilon, statistics_);
    } else {
      compute_moments({p[kScale], p[kShift], p[kMean], operation_.epsilon, batch_, statistics_, shared_});
      if (operation_.synchronized) {
        add_up(shared_.bytes());
        launch(finish_shared_forward, channel_blocks(columns_.channels), kChannelThreads, lane(), shared_, pixels_,
               p[kMean], p[kScale], p[kShift], operation_.epsilon, statistics_);
      }
    }
    if (leaves_output() || after_) return;
    launch(normalize_kernel(), columns_.grid(), columns_.block(), lane(), columns_, input_, addend_, statistics_,
           output_values_, positive());
  }

  void backward(float sample_weight) override {
    const auto& g = parameter_gradients_;
    const ParameterGradients to{g[kScale], g[kShift], g[kMean], g[kVariance], batch_ * sample_weight};
    const UseGradientSums use{pixels_,     batch_, context_.unscale, operation_.frozen_statistics,
                              statistics_, to,     shared_};
    compute_gradient_sums(use);
    if (operation_.synchronized) {
      add_up(shared_.bytes() - sizeof(float));  // the image count is known
      launch(finish_shared_backward, channel_blocks(columns_.channels), kChannelThreads, lane(), shared_, pixels_,
             statistics_);
    }
    if (!gradient_.wanted() && !addend_gradient_.wanted()) return;
    launch(input_gradients_kernel(), columns_.grid(), columns_.block(), lane(), columns_, input_, output_gradient_,
           positive(), after(), statistics_, gradient_, addend_gradient_);
  }

 private:
  cudaStream_t lane() const { return context_.lane.get(); }
  std::uint8_t* positive() const { return data<std::uint8_t>(positive_.view()); }
  unsigned* counters() const { return data<unsigned>(counters_.view()); }

  bool uses_batch_statistics() const { return mode_ == Mode::training && !operation_.frozen_statistics; }
  bool leaves_output() const { return left_ || statistics_.scale16 != nullptr; }
  PoolAfter<T> after() const { return after_.value_or(PoolAfter<T>{}); }
  // Whether the output's gradient needs no zeros: there is no ReLU, or a convolution has written them.
  bool passes_everywhere() const { return !operation_.relu || gradient_memory_.view(); }

  void compute_moments(const UseMoments& use) {
    if (sums_memory_.view())
      launch(moments_of_convolution, channel_blocks(columns_.channels), kChannelThreads, lane(), columns_.channels,
             static_cast<float>(columns_.rows), sums_, use);
    else
      launch(batch_moments<T>, columns_.grid(), columns_.block(), lane(), columns_, input_,
             static_cast<Moments*>(partial_), counters(), use);
  }

  void compute_gradient_sums(const UseGradientSums& use) {
    if (gradient_memory_.view())
      launch(gradient_sums_of_convolution, channel_blocks(columns_.channels), kChannelThreads, lane(),
             columns_.channels, norm_gradient_, use);
    else
      launch(gradient_sums_kernel(), columns_.grid(), columns_.block(), lane(), columns_, input_, output_gradient_,
             positive(), after(), static_cast<Sums<2>*>(partial_), counters(), use);
  }

  void add_up(std::size_t bytes) {
    if (sum_over_ranks_) sum_over_ranks_(shared_memory_.view().slice(0, bytes));
  }

  auto normalize_kernel() const {
    if (operation_.add) return operation_.relu ? normalize<T, true, true> : normalize<T, true, false>;
    return operation_.relu ? normalize<T, false, true> : normalize<T, false, false>;
  }

  // REQUIRES: no convolution does this pass.
  auto gradient_sums_kernel() const {
    if (after_) return gradient_sums<T, Active::in_windows>;
    if (!operation_.relu) return gradient_sums<T, Active::everywhere>;
    return leaves_output() ? gradient_sums<T, Active::recomputed> : gradient_sums<T, Active::stored>;
  }

  auto input_gradients_kernel() const {
    if (after_) return input_gradients<T, Active::in_windows>;
    if (passes_everywhere()) return input_gradients<T, Active::everywhere>;
    return leaves_output() ? input_gradients<T, Active::recomputed> : input_gradients<T, Active::stored>;
  }

  BatchNorm operation_;
  Mode mode_;
  Context& context_;
  float batch_, pixels_;
  Columns columns_;
  Buffer own_, counters_, positive_;  // positive: a bit for each value, a byte for each 16 bytes; only if needed
  Statistics statistics_;
  Buffer sums_memory_, factors_memory_, gradient_memory_;  // only if convolutions do passes of it
  FusibleNorm::ChannelSums sums_{};
  NormGradient norm_gradient_{};
  bool left_ = false;                  // leave_stored_output()
  std::optional<PoolAfter<T>> after_;  // only if it does a pass of this
  Buffer shared_memory_;               // only if synchronized
  SharedSums shared_{};
  SumOverRanks sum_over_ranks_;
  const T* input_ = nullptr;
  const T* addend_ = nullptr;
  T* output_values_ = nullptr;
  const T* output_gradient_ = nullptr;
  InputGradient<T> gradient_, addend_gradient_;
  const float* parameter_values_[kCount]{};
  float* parameter_gradients_[kCount]{};
  void* partial_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const BatchNorm& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, BatchNormOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
