#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

// A unit of copying: `lanes` neighbouring values, either 16 bytes or a single value.
template <class T, unsigned lanes>
struct Piece {
  using Stored = Packed<T>;
  __device__ static Vector<T> load(const Stored& stored) { return unpacked<T>(stored); }
  __device__ static Stored stored(const Vector<T>& values) { return packed<T>(values); }
};
template <class T>
struct Piece<T, 1> {
  using Stored = T;
  __device__ static Floats<1> load(const T& stored) { return {{static_cast<float>(stored)}}; }
  __device__ static T stored(const Floats<1>& values) { return T(values.at[0]); }
};

// Columns copied or added from a matrix to another with the same row count. All sizes are in pieces.
struct Strip {
  unsigned from_width, from_column, to_width, to_column;
  unsigned copied, written;  // columns; columns from `copied` on become zeros
  bool accumulate;
};

template <class T, unsigned lanes>
__global__ void copy_strip(Predecessor previous, Strip strip, const T* from, T* to, std::size_t pieces) {
  await(previous);
  using P = Piece<T, lanes>;
  const auto* source = reinterpret_cast<const typename P::Stored*>(from);
  auto* target = reinterpret_cast<typename P::Stored*>(to);
  for (std::size_t i = grid_thread(); i < pieces; i += grid_threads()) {
    const std::size_t row = i / strip.written;
    const unsigned column = static_cast<unsigned>(i % strip.written);
    Floats<lanes> values{};
    if (column < strip.copied) values = P::load(source[row * strip.from_width + strip.from_column + column]);
    auto& place = target[row * strip.to_width + strip.to_column + column];
    if (strip.accumulate) {
      const Floats<lanes> there = P::load(place);
      for (unsigned k = 0; k < lanes; ++k) values.at[k] += there.at[k];
    }
    place = P::stored(values);
  }
}

// Along the channels, copies 16 bytes at a time if all inputs except the last fill their vectors; otherwise copies
// value by value, to drop the padding after each input's channels. Along another dimension, each input is a run of
// whole vectors for each index of the dimensions before it.
template <class T>
class ConcatOp : public Op {
 public:
  ConcatOp(const Concat& operation, const Specs& inputs, Context& context) : context_(context) {
    std::vector<Shape> shapes;
    for (const TensorSpec& input : inputs) shapes.push_back(input.shape);
    const std::size_t axis = operation.axis;
    info_.output = value_spec(operation.output_shape(shapes), context.type(), channels_last(inputs[0]).axis());
    info_.inputs.assign(inputs.size(), {.backward_reads = false, .adds_to_gradient = true});
    info_.backward_reads_output = false;
    const ChannelsLast& out = channels_last(info_.output);
    vectors_of(out);  // checks that 32 bits can count the columns
    std::size_t begin = 0;
    for (const TensorSpec& input : inputs) {
      full_ = full_ && begin % kLanes<T> == 0;
      const ChannelsLast& layout = channels_last(input);
      const std::size_t width = input.shape[axis] * layout.strides()[axis];  // 1 if they are the channels
      parts_.push_back({begin, width, axis == out.axis() ? layout.channels() : width});
      begin += width;
    }
    output_channels_ = axis == out.axis() ? out.channels() : begin;
    rows_ = out.count() / output_channels_;
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const std::size_t end = i + 1 < parts_.size() ? part.begin + part.channels : output_channels_;
      copy({part.padded, 0, output_channels_, part.begin, part.channels, end - part.begin},
           data<T>(bindings_.inputs[i]), data<T>(bindings_.output), false);
    }
  }

  void backward(float) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      if (const InputGradient<T> to(bindings_, i); to.wanted())
        copy({output_channels_, part.begin, part.padded, 0, part.channels, part.padded},
             data<T>(bindings_.output_gradient), to.values, to.accumulate);
    }
  }

 private:
  struct Part {
    // In values: the position in the output, the number, and the number with padding in the input.
    std::size_t begin, channels, padded;
  };
  struct Channels {  // a Strip, in channels
    std::size_t from_width, from_column, to_width, to_column, copied, written;
  };

  void copy(const Channels& c, const T* from, T* to, bool accumulate) const {
    full_ ? copy_pieces<kLanes<T>>(c, from, to, accumulate) : copy_pieces<1>(c, from, to, accumulate);
  }

  template <unsigned lanes>
  void copy_pieces(const Channels& c, const T* from, T* to, bool accumulate) const {
    const auto pieces = [](std::size_t channels) { return static_cast<unsigned>((channels + lanes - 1) / lanes); };
    const Strip strip{pieces(c.from_width), pieces(c.from_column), pieces(c.to_width), pieces(c.to_column),
                      pieces(c.copied),     pieces(c.written),     accumulate};
    over_vectors(copy_strip<T, lanes>, rows_ * strip.written, context_, strip, from, to);
  }

  Context& context_;
  std::size_t rows_, output_channels_;
  std::vector<Part> parts_;
  bool full_ = true;
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Concat& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, ConcatOp>(context.type(), operation, inputs, context);
}

}  // namespace annulus::cuda
