// Operations that move elements. Outputs have their channels where the input's are, if there is such a dimension: then
// a transpose between {batch, channels, height, width} and {batch, height, width, channels} is a plain copy.

#include <algorithm>

#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/lanes.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/move.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// Moves input elements to the output, and gradients back.
class MoveOp : public Op {
 public:
  MoveOp(const Move& forward, const Move& back, const TensorSpec& output) : forward_(forward), back_(back) {
    info_.output = output;
    info_.inputs = {{.backward_reads = false,
                     .output_may_overwrite = forward.keeps_memory(),
                     .gradient_may_overwrite = back.keeps_memory(),
                     .adds_to_gradient = true}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }
  void forward() override { forward_.run(bindings_.inputs[0], bindings_.output, false); }
  void backward(float) override {
    if (bindings_.input_gradients[0])
      back_.run(bindings_.output_gradient, bindings_.input_gradients[0], bindings_.accumulates(0));
  }

 private:
  Move forward_, back_;
  Bindings bindings_;
};

// A tensor's elements, counted in row-major order.
struct RowMajor {
  static constexpr unsigned kDimensions = Loop<1>::kDimensions;
  unsigned dimensions = 0;
  unsigned size[kDimensions]{};
  std::int64_t stride[kDimensions]{};

  explicit RowMajor(const TensorSpec& tensor) {
    const Strides strides = strides_of(tensor);
    expect_dimensions(static_cast<unsigned>(strides.size()), kDimensions);
    for (const std::size_t extent : tensor.shape) {
      size[dimensions] = static_cast<unsigned>(extent);
      stride[dimensions] = strides[dimensions];
      ++dimensions;
    }
  }

  __device__ std::int64_t offset(unsigned element) const {
    std::int64_t offset = 0;
    for (unsigned d = dimensions; d-- > 0; element /= size[d]) offset += element % size[d] * stride[d];
    return offset;
  }
};

// `rows_fit`: neighbouring elements in a vector of `to` are neighbours in `from`.
template <class T>
__global__ void reshape(Predecessor previous, const __grid_constant__ Loop<1> loop,
                        const __grid_constant__ RowMajor source, bool rows_fit, const T* from, InputGradient<T> to,
                        std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Lanes lanes = loop.at(static_cast<unsigned>(i)).of[0];
    const auto first = static_cast<unsigned>(lanes.offset), step = static_cast<unsigned>(lanes.stride);
    Vector<T> values{};
    if (rows_fit) {
      values = load(from, Lanes{source.offset(first), 1, lanes.used});
    } else {
      for (unsigned k = 0; k < kLanes<T>; ++k)
        if (k < lanes.used) values.at[k] = static_cast<float>(from[source.offset(first + k * step)]);
    }
    to.put(values, i);
  }
}

// Returns the output dimension that is the input's channels, if any: equally many elements come before it.
std::optional<std::size_t> kept_channels(const TensorSpec& input, const Shape& output) {
  const std::size_t axis = channels_last(input).axis();
  const auto before = [](const Shape& shape, std::size_t dimension) {
    return elements({shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(dimension)});
  };
  for (std::size_t i = 0; i < output.size(); ++i)
    if (output[i] > 1 && output[i] == input.shape[axis] && before(output, i) == before(input.shape, axis) &&
        (i > 0) == (axis > 0))
      return i;
  return {};
}

// The same elements in another shape, in row-major order.
template <class T>
class Reshaping {
 public:
  Reshaping(const TensorSpec& from, const TensorSpec& to, Context& context)
      : context_(context),
        loop_(loop_over<1>(channels_last(to), {row_major_strides(to.shape)}, kLanes<T>)),
        source_(from),
        bytes_(to.layout->bytes()),
        rows_fit_(full_rows(from) && full_rows(to)),
        keeps_memory_(rows_fit_ || kept_channels(from, to.shape) == channels_last(to).axis()) {}

  bool keeps_memory() const { return keeps_memory_; }

  void run(DeviceView from, const InputGradient<T>& to) const {
    if (keeps_memory_ && !to.accumulate) {
      if (data<T>(from) != to.values)
        check(cudaMemcpyAsync(to.values, from.address, bytes_, cudaMemcpyDeviceToDevice, context_.lane.get()));
      return;
    }
    over_vectors(reshape<T>, loop_.vectors(), context_, loop_, source_, rows_fit_, data<T>(from), to);
  }

  // Whether the elements are in row-major order, without padding.
  static bool full_rows(const TensorSpec& tensor) {
    const std::size_t axis = channels_last(tensor).axis();
    return axis + 1 == tensor.shape.size() && tensor.shape[axis] % kLanes<T> == 0;
  }

 private:
  Context& context_;
  Loop<1> loop_;
  RowMajor source_;
  std::size_t bytes_;
  bool rows_fit_, keeps_memory_;
};

template <class T>
class ReshapeOp : public Op {
 public:
  ReshapeOp(const TensorSpec& input, const TensorSpec& output, Context& context)
      : forward_(input, output, context), back_(output, input, context) {
    expect_countable(elements(input.shape));
    const bool same_memory = forward_.keeps_memory();
    info_.output = output;
    info_.inputs = {{.backward_reads = false,
                     .output_may_overwrite = same_memory,
                     .gradient_may_overwrite = same_memory,
                     .adds_to_gradient = true}};
    info_.backward_reads_output = false;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override { forward_.run(bindings_.inputs[0], InputGradient<T>(bindings_.output)); }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted()) back_.run(bindings_.output_gradient, to);
  }

 private:
  Reshaping<T> forward_, back_;
  Bindings bindings_;
};

// Returns a spec for an output with the input's channels.
TensorSpec like(const TensorSpec& input, const Shape& shape) {
  return value_spec(shape, input.type, channels_last(input).axis());
}

}  // namespace

std::unique_ptr<Op> plan(const Reshape& operation, const Specs& inputs, Mode, Context& context) {
  const Shape shape = operation.output_shape({inputs[0].shape});
  const auto kept = kept_channels(inputs[0], shape);
  const TensorSpec output = kept ? value_spec(shape, context.type(), *kept) : last_spec(shape, context.type());
  return make_for<Op, ReshapeOp>(context.type(), inputs[0], output, context);
}

std::unique_ptr<Op> plan(const Transpose& operation, const Specs& inputs, Mode, Context& context) {
  const TensorSpec& in = inputs[0];
  const Shape shape = operation.output_shape({in.shape});
  const auto channels =
      static_cast<std::size_t>(std::ranges::find(operation.order, channels_last(in).axis()) - operation.order.begin());
  const bool batch_first = operation.order.empty() || operation.order[0] == 0;
  const TensorSpec out = batch_first ? value_spec(shape, in.type, channels) : last_spec(shape, in.type);
  const Strides in_strides = strides_of(in), out_strides = strides_of(out);
  Strides forward, back(in.shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    forward.push_back(in_strides[operation.order[i]]);
    back[operation.order[i]] = out_strides[i];
  }
  return std::make_unique<MoveOp>(Move({.from = in, .to = out, .strides = forward}, context),
                                  Move({.from = out, .to = in, .strides = back}, context), out);
}

std::unique_ptr<Op> plan(const Slice& operation, const Specs& inputs, Mode, Context& context) {
  const TensorSpec &in = inputs[0], out = like(in, operation.output_shape({in.shape}));
  const auto begin = static_cast<std::int64_t>(operation.begin);
  const Strides in_strides = strides_of(in), out_strides = strides_of(out);
  std::vector<Range> ranges;
  for (const std::size_t extent : in.shape) ranges.push_back({0, extent});
  ranges[operation.axis] = {operation.begin, operation.begin + operation.size};
  return std::make_unique<MoveOp>(
      Move({.from = in, .to = out, .strides = in_strides, .first = begin * in_strides[operation.axis]}, context),
      Move({.from = out,
            .to = in,
            .strides = out_strides,
            .first = -begin * out_strides[operation.axis],
            .ranges = ranges},
           context),
      out);
}

std::unique_ptr<Op> plan(const Pad& operation, const Specs& inputs, Mode, Context& context) {
  const TensorSpec &in = inputs[0], out = like(in, operation.output_shape({in.shape}));
  const Strides in_strides = strides_of(in), out_strides = strides_of(out);
  std::vector<Range> ranges;
  std::int64_t forward = 0, back = 0;
  for (std::size_t i = 0; i < in.shape.size(); ++i) {
    const auto before = static_cast<std::int64_t>(operation.before[i]);
    ranges.push_back({operation.before[i], operation.before[i] + in.shape[i]});
    forward -= before * in_strides[i];
    back += before * out_strides[i];
  }
  return std::make_unique<MoveOp>(
      Move({.from = in, .to = out, .strides = in_strides, .first = forward, .ranges = ranges, .fill = operation.value},
           context),
      Move({.from = out, .to = in, .strides = out_strides, .first = back}, context), out);
}

}  // namespace annulus::cuda
