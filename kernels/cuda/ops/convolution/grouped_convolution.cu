// Convolutions with groups. cuDNN has no fast engines for groups with few channels, and cuDNN's layouts would pad a
// depthwise convolution's weights eightfold. Here weights are stored as {channels in a group, rows, columns, filters'},
// so a thread has a vector of neighbouring filters at a pixel. Depthwise convolutions, with a filter for each channel,
// are bound by memory and read 16 bytes at a time.

#include "kernels/cuda/ops/convolution/grouped_convolution.h"

#include <algorithm>
#include <variant>

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/image_place.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/runtime/runtime.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Places windows along an image's axis.
struct Axis {
  unsigned kernel, stride, padding, dilation, pixels, outputs;

  // Returns the input pixel that a kernel position has in a window; not less than `pixels` if there is none.
  __device__ unsigned pixel(unsigned output, unsigned position) const {
    return output * stride + position * dilation - padding;
  }
  // Returns the window in which a kernel position has this pixel; not less than `outputs` if there is none.
  __device__ unsigned output(unsigned pixel, unsigned position) const {
    const unsigned first = pixel + padding - position * dilation;
    return first % stride == 0 ? first / stride : outputs;
  }
};

struct Groups {
  Axis rows, columns;
  unsigned channels, filters;      // in all
  unsigned inputs_of, filters_of;  // a group: how many channels and filters
  unsigned vectors_in, vectors_out;

  __host__ __device__ unsigned taps() const { return rows.kernel * columns.kernel; }
};

template <class T, bool depthwise>
__global__ void convolve(Predecessor previous, Groups g, const T* input, const T* weights, T* output,
                         unsigned outputs) {
  await(previous);
  for (std::size_t i = grid_thread(); i < outputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), g.rows.outputs, g.columns.outputs, g.vectors_out);
    const unsigned first = place.vector * kLanes<T>;
    Vector<T> sum{};
    for (unsigned tap = 0; tap < g.taps(); ++tap) {
      const unsigned row = g.rows.pixel(place.row, tap / g.columns.kernel);
      const unsigned column = g.columns.pixel(place.column, tap % g.columns.kernel);
      if (row >= g.rows.pixels || column >= g.columns.pixels) continue;
      const std::size_t pixel = (std::size_t{place.image} * g.rows.pixels + row) * g.columns.pixels + column;
      if constexpr (depthwise) {
        const Vector<T> values = load(input, pixel * g.vectors_in + place.vector);
        const Vector<T> factors = load(weights, tap * g.vectors_out + place.vector);
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += values.at[k] * factors.at[k];
      } else {
        const T* values = input + pixel * g.vectors_in * kLanes<T>;
        for (unsigned e = 0; e < g.inputs_of; ++e) {
          const Vector<T> factors = load(weights, (e * g.taps() + tap) * g.vectors_out + place.vector);
          for (unsigned k = 0; k < kLanes<T>; ++k)
            if (first + k < g.filters)
              sum.at[k] += factors.at[k] * static_cast<float>(values[(first + k) / g.filters_of * g.inputs_of + e]);
        }
      }
    }
    store(sum, output, i);
  }
}

template <class T, bool depthwise>
__global__ void convolve_backward(Predecessor previous, Groups g, const T* weights, const T* output_gradient,
                                  InputGradient<T> to, unsigned inputs) {
  await(previous);
  for (std::size_t i = grid_thread(); i < inputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), g.rows.pixels, g.columns.pixels, g.vectors_in);
    const unsigned first = place.vector * kLanes<T>;
    Vector<T> sum{};
    for (unsigned tap = 0; tap < g.taps(); ++tap) {
      const unsigned row = g.rows.output(place.row, tap / g.columns.kernel);
      const unsigned column = g.columns.output(place.column, tap % g.columns.kernel);
      if (row >= g.rows.outputs || column >= g.columns.outputs) continue;
      const std::size_t pixel = (std::size_t{place.image} * g.rows.outputs + row) * g.columns.outputs + column;
      if constexpr (depthwise) {
        const Vector<T> gradient = load(output_gradient, pixel * g.vectors_out + place.vector);
        const Vector<T> factors = load(weights, tap * g.vectors_out + place.vector);
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += gradient.at[k] * factors.at[k];
      } else {
        const unsigned stride = g.vectors_out * kLanes<T>;
        const T* gradients = output_gradient + pixel * stride;
        for (unsigned k = 0; k < kLanes<T> && first + k < g.channels; ++k) {
          const unsigned filter = (first + k) / g.inputs_of * g.filters_of, e = (first + k) % g.inputs_of;
          const T* factors = weights + std::size_t{e * g.taps() + tap} * stride;
          for (unsigned f = filter; f < filter + g.filters_of; ++f)
            sum.at[k] += static_cast<float>(gradients[f]) * static_cast<float>(factors[f]);
        }
      }
    }
    to.put(sum, i);
  }
}

// blockIdx.z numbers the weights in a filter. A weight's gradient sums over the columns of the output's gradient.
template <class T, bool depthwise>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    weight_sums(Predecessor previous, Groups g, Columns outputs, const T* input, const T* output_gradient,
                Sums<1>* partial) {
  await(previous);
  constexpr unsigned kBatch = 2;
  const unsigned tap = blockIdx.z % g.taps(), e = blockIdx.z / g.taps();
  const unsigned first = own_vector() * kLanes<T>;
  Sums<1> sums[kLanes<T>]{};
  Packed<T> gradients[kBatch];
  for_each_row<kBatch>(
      outputs, false, [&](unsigned k, std::size_t index) { gradients[k] = fetch(output_gradient, index); },
      [&](unsigned k, std::size_t index) {
        const Place place(static_cast<unsigned>(index), g.rows.outputs, g.columns.outputs, g.vectors_out);
        const unsigned row = g.rows.pixel(place.row, tap / g.columns.kernel);
        const unsigned column = g.columns.pixel(place.column, tap % g.columns.kernel);
        if (row >= g.rows.pixels || column >= g.columns.pixels) return;
        const std::size_t pixel = (std::size_t{place.image} * g.rows.pixels + row) * g.columns.pixels + column;
        const Vector<T> gradient = unpacked<T>(gradients[k]);
        if constexpr (depthwise) {
          const Vector<T> values = load(input, pixel * g.vectors_in + place.vector);
          for (unsigned i = 0; i < kLanes<T>; ++i) sums[i].of[0] += gradient.at[i] * values.at[i];
        } else {
          const T* values = input + pixel * g.vectors_in * kLanes<T>;
          for (unsigned i = 0; i < kLanes<T>; ++i)
            if (first + i < g.filters)
              sums[i].of[0] +=
                  gradient.at[i] * static_cast<float>(values[(first + i) / g.filters_of * g.inputs_of + e]);
        }
      });
  store_block_sums(outputs, sums, partial + blockIdx.z * (std::size_t{outputs.stripes} * outputs.channels));
}

__global__ void finish_weights(Predecessor previous, Columns outputs, const Sums<1>* partial, const float* factor,
                               float* gradient) {
  await(previous);
  const std::size_t weight = blockIdx.z;
  const float by = *factor;
  add_up_stripes(
      outputs, partial + weight * outputs.stripes * outputs.channels,
      [&](unsigned filter, const Sums<1>& sum) { gradient[weight * outputs.channels + filter] = by * sum.of[0]; });
}

template <class T>
class GroupedConvolution final : public ConvolutionPlan {
 public:
  GroupedConvolution(const GroupedProblem& problem, int multiprocessors)
      : pass_(problem.windows.pass),
        multiprocessors_(multiprocessors),
        groups_(groups(problem)),
        weights_(groups_.inputs_of * groups_.taps()),
        outputs_(problem.windows.batch * groups_.rows.outputs * groups_.columns.outputs, problem.windows.filters,
                 kLanes<T>, std::max(1, multiprocessors / static_cast<int>(weights_))),
        input_vectors_(count(problem.windows.batch * problem.windows.height * problem.windows.width) *
                       groups_.vectors_in) {}

  std::size_t workspace_bytes() const override {
    return std::holds_alternative<BackwardWeights>(pass_) ? weights_ * outputs_.partial_sums() * sizeof(Sums<1>) : 0;
  }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override {
    auto *x = static_cast<T*>(operands.input), *w = static_cast<T*>(operands.weights);
    auto* y = static_cast<T*>(operands.output);
    if (std::holds_alternative<Forward>(pass_)) {
      const auto vectors = static_cast<unsigned>(outputs_.rows * outputs_.vectors);
      launch(depthwise() ? convolve<T, true> : convolve<T, false>, blocks_for(vectors, kThreads, multiprocessors_),
             kThreads, stream, groups_, x, w, y, vectors);
    } else if (const auto* gradient = std::get_if<BackwardData>(&pass_)) {
      InputGradient<T> to;
      to.values = x;
      to.accumulate = *gradient == BackwardData::added;
      launch(depthwise() ? convolve_backward<T, true> : convolve_backward<T, false>,
             blocks_for(input_vectors_, kThreads, multiprocessors_), kThreads, stream, groups_, w, y, to,
             input_vectors_);
    } else {
      auto* partial = static_cast<Sums<1>*>(workspace);
      const dim3 grid = outputs_.grid(), sum_grid = outputs_.sum_grid();
      launch(depthwise() ? weight_sums<T, true> : weight_sums<T, false>, dim3(grid.x, grid.y, weights_),
             outputs_.block(), stream, groups_, outputs_, x, y, partial);
      launch(finish_weights, dim3(sum_grid.x, 1, weights_), outputs_.sum_block(), stream, outputs_, partial,
             operands.factor, static_cast<float*>(operands.weights));
    }
  }

 private:
  static unsigned count(std::size_t size) { return static_cast<unsigned>(size); }

  static Groups groups(const GroupedProblem& problem) {
    const ConvolutionProblem& p = problem.windows;
    return {.rows = {count(p.kernel.height), count(p.stride.height), count(p.padding.top), count(p.dilation.height),
                     count(p.height), count(p.output_height())},
            .columns = {count(p.kernel.width), count(p.stride.width), count(p.padding.left), count(p.dilation.width),
                        count(p.width), count(p.output_width())},
            .channels = count(problem.channels),
            .filters = count(problem.filters),
            .inputs_of = count(problem.channels / problem.groups),
            .filters_of = count(problem.filters / problem.groups),
            .vectors_in = count(p.channels / kLanes<T>),
            .vectors_out = count(p.filters / kLanes<T>)};
  }

  bool depthwise() const { return groups_.inputs_of == 1 && groups_.filters_of == 1; }

  ConvolutionPass pass_;
  int multiprocessors_;
  Groups groups_;
  unsigned weights_;  // per filter
  Columns outputs_;
  unsigned input_vectors_;
};

}  // namespace

std::unique_ptr<ConvolutionPlan> plan_grouped(const GroupedProblem& problem, int multiprocessors) {
  return make_for<ConvolutionPlan, GroupedConvolution>(value_type(problem.windows.precision), problem, multiprocessors);
}

}  // namespace annulus::cuda
