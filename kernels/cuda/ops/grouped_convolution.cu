// Convolutions with groups. cuDNN has no fast engines for groups of few channels, and its layouts would pad a depthwise
// convolution's weights eightfold. Here weights are stored as {channels of a group, rows, columns, filters'}, so a
// thread has a vector of neighbouring filters at a pixel. Depthwise convolutions, with a filter for each channel, are
// bound by memory and read 16 bytes at a time.

#include <algorithm>

#include "kernels/cuda/ops/bias.h"
#include "kernels/cuda/ops/column_sums.h"
#include "kernels/cuda/ops/image_place.h"
#include "kernels/cuda/ops/input_gradient.h"
#include "kernels/cuda/ops/limits.h"
#include "kernels/cuda/ops/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Windows along one axis of an image.
struct Axis {
  unsigned kernel, stride, padding, dilation, pixels, outputs;

  // The input pixel that a position of the kernel has in a window; not less than `pixels` if there is none.
  __device__ unsigned pixel(unsigned output, unsigned position) const {
    return output * stride + position * dilation - padding;
  }
  // The window in which a position of the kernel has this pixel; not less than `outputs` if there is none.
  __device__ unsigned output(unsigned pixel, unsigned position) const {
    const unsigned first = pixel + padding - position * dilation;
    return first % stride == 0 ? first / stride : outputs;
  }
};

struct Groups {
  Axis rows, columns;
  unsigned channels, filters;      // in all
  unsigned inputs_of, filters_of;  // a group: numbers of channels and of filters
  unsigned vectors_in, vectors_out;

  __host__ __device__ unsigned taps() const { return rows.kernel * columns.kernel; }
};

template <class T, bool depthwise>
__global__ void convolve(Groups g, const T* input, const T* weights, T* output, unsigned outputs) {
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
__global__ void convolve_backward(Groups g, const T* weights, const T* output_gradient, InputGradient<T> to,
                                  unsigned inputs) {
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

// blockIdx.z is the number of a weight of each filter. Its gradient is a sum over the columns of the output's gradient.
template <class T, bool depthwise>
__global__ void __launch_bounds__(Columns::kThreads, Columns::kBlocksEach)
    weight_sums(Groups g, Columns outputs, const T* input, const T* output_gradient, Sums<1>* partial) {
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

__global__ void finish_weights(Columns outputs, const Sums<1>* partial, const float* unscale, float* gradient) {
  const std::size_t weight = blockIdx.z;
  add_up_stripes(outputs, partial + weight * outputs.stripes * outputs.channels,
                 [&](unsigned filter, const Sums<1>& sum) {
                   gradient[weight * outputs.channels + filter] = *unscale * sum.of[0];
                 });
}

template <class T>
class GroupedConvolutionOp : public Op {
 public:
  GroupedConvolutionOp(const Convolution& operation, const TensorSpec& input, Mode mode, Context& context)
      : context_(context),
        mode_(mode),
        bias_(operation.bias),
        shape_(operation.output_shape({input.shape})),
        groups_(groups(operation, input.shape, shape_)),
        weights_(groups_.inputs_of * groups_.taps()),
        outputs_(shape_[0] * shape_[2] * shape_[3], groups_.vectors_out * kLanes<T>, kLanes<T>,
                 std::max(1, context.multiprocessors / static_cast<int>(weights_))),
        ending_(operation.bias, operation.relu, outputs_.rows, outputs_.channels, context) {
    info_.output = value_spec(shape_, context.type());
    info_.inputs = {{.adds_to_gradient = true}};
    info_.backward_reads_output = operation.relu;
    const auto declared = operation.parameters({input.shape});
    info_.parameters = {channels_spec(declared[0].shape, context.type(), 0)};
    if (bias_) info_.parameters.push_back(channels_spec(declared[1].shape, context.type()));
    input_vectors_ = vectors_of(channels_last(input));
    output_vectors_ = vectors_of(channels_last(info_.output));
  }

  void bind(const Bindings& bindings) override {
    bindings_ = bindings;
    values_ = data<T>(context_.type() == DataType::f32 ? bindings.parameters[0] : bindings.copies[0]);
    if (mode_ == Mode::inference) return;
    workspace_ =
        context_.workspace(std::max(ending_.workspace_bytes(), weights_ * outputs_.partial_sums() * sizeof(Sums<1>)));
  }

  void forward() override {
    run(depthwise() ? convolve<T, true> : convolve<T, false>, output_vectors_, groups_, data<T>(bindings_.inputs[0]),
        values_, data<T>(bindings_.output));
    ending_.forward(bindings_.output.address, bias_ ? data<float>(bindings_.parameters[1]) : nullptr);
  }

  void backward(float) override {
    const T* gradient = data<T>(bindings_.output_gradient);
    ending_.backward(bindings_.output.address, bindings_.output_gradient.address,
                     bias_ ? data<float>(bindings_.parameter_gradients[1]) : nullptr, workspace_);
    auto* partial = static_cast<Sums<1>*>(workspace_);
    const dim3 grid = outputs_.grid(), sum_grid = outputs_.sum_grid();
    launch(depthwise() ? weight_sums<T, true> : weight_sums<T, false>, dim3(grid.x, grid.y, weights_), outputs_.block(),
           context_.lane.get(), groups_, outputs_, data<T>(bindings_.inputs[0]), gradient, partial);
    launch(finish_weights, dim3(sum_grid.x, 1, weights_), outputs_.sum_block(), context_.lane.get(), outputs_, partial,
           context_.unscale, data<float>(bindings_.parameter_gradients[0]));
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      run(depthwise() ? convolve_backward<T, true> : convolve_backward<T, false>, input_vectors_, groups_, values_,
          gradient, to);
  }

 private:
  static Groups groups(const Convolution& o, const Shape& in, const Shape& out) {
    const auto count = [](std::size_t size) { return static_cast<unsigned>(size); };
    const auto vectors = [&](std::size_t channels) { return count((channels + kLanes<T> - 1) / kLanes<T>); };
    return {.rows = {count(o.kernel.height), count(o.stride.height), count(o.padding.top), count(o.dilation.height),
                     count(in[2]), count(out[2])},
            .columns = {count(o.kernel.width), count(o.stride.width), count(o.padding.left), count(o.dilation.width),
                        count(in[3]), count(out[3])},
            .channels = count(in[1]),
            .filters = count(out[1]),
            .inputs_of = count(in[1] / o.groups),
            .filters_of = count(out[1] / o.groups),
            .vectors_in = vectors(in[1]),
            .vectors_out = vectors(out[1])};
  }

  bool depthwise() const { return groups_.inputs_of == 1 && groups_.filters_of == 1; }

  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), unsigned vectors, Arguments... arguments) const {
    launch(kernel, blocks_for(vectors, kThreads, context_.multiprocessors), kThreads, context_.lane.get(), arguments...,
           vectors);
  }

  Context& context_;
  Mode mode_;
  bool bias_;
  Shape shape_;
  Groups groups_;
  unsigned weights_;  // of each filter
  Columns outputs_;
  BiasRelu ending_;
  unsigned input_vectors_, output_vectors_;
  Bindings bindings_;
  const T* values_ = nullptr;  // the weights in the value type
  void* workspace_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan_grouped(const Convolution& operation, const TensorSpec& input, Mode mode, Context& context) {
  return make_for<Op, GroupedConvolutionOp>(context.type(), operation, input, mode, context);
}

}  // namespace annulus::cuda
