#include <cstdint>

#include "kernels/cuda/ops/image_place.h"
#include "kernels/cuda/ops/input_gradient.h"
#include "kernels/cuda/ops/limits.h"
#include "kernels/cuda/ops/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint8_t kNoPixel = 255;  // the ReLU was inactive

// Windows over images. A row of pixels of an image is `vectors` times 16 bytes.
struct Pool {
  struct Axis {
    unsigned kernel, stride, padding;
  };
  Axis rows, columns;
  unsigned height, width, out_height, out_width, vectors;
};

// For each of a vector's values, the number of the pixel in its window that it came from.
template <class T>
struct alignas(kLanes<T>) Numbers {
  std::uint8_t at[kLanes<T>];
};

template <class T>
__global__ void max_pool(Pool pool, const T* input, T* output, Numbers<T>* from, float least, unsigned outputs) {
  for (std::size_t i = grid_thread(); i < outputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), pool.out_height, pool.out_width, pool.vectors);
    Vector<T> best;
    Numbers<T> numbers;
    for (unsigned k = 0; k < kLanes<T>; ++k) {
      best.at[k] = least;
      numbers.at[k] = kNoPixel;
    }
    // Unsigned positions before the image wrap around, and so are beyond its end.
    unsigned pixel = 0;
    for (unsigned row = place.row * pool.rows.stride - pool.rows.padding, y = 0; y < pool.rows.kernel; ++y, ++row)
      for (unsigned column = place.column * pool.columns.stride - pool.columns.padding, x = 0; x < pool.columns.kernel;
           ++x, ++column, ++pixel) {
        if (row >= pool.height || column >= pool.width) continue;
        const Vector<T> values = load(input, vector_at(place, pool.height, pool.width, pool.vectors, row, column));
        for (unsigned k = 0; k < kLanes<T>; ++k) {
          // NaN is larger than any number, and nothing is larger than NaN: so divergence is not hidden.
          const bool larger = !(values.at[k] <= best.at[k]) && best.at[k] == best.at[k];
          best.at[k] = larger ? values.at[k] : best.at[k];
          numbers.at[k] = larger ? static_cast<std::uint8_t>(pixel) : numbers.at[k];
        }
      }
    store(best, output, i);
    if (from != nullptr) from[i] = numbers;
  }
}

// The windows along one axis that contain a position: from `first` to before `end`.
struct Windows {
  unsigned first, end;

  __device__ Windows(const Pool::Axis& axis, unsigned position, unsigned count) {
    const unsigned padded = position + axis.padding;
    first = padded < axis.kernel ? 0 : (padded - axis.kernel) / axis.stride + 1;
    end = min(padded / axis.stride + 1, count);
  }
};

// Each pixel of the input collects gradients from the windows in which it is the largest.
template <class T>
__global__ void max_pool_backward(Pool pool, const T* output_gradient, const Numbers<T>* from, InputGradient<T> to,
                                  unsigned inputs) {
  for (std::size_t i = grid_thread(); i < inputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), pool.height, pool.width, pool.vectors);
    const Windows rows(pool.rows, place.row, pool.out_height), columns(pool.columns, place.column, pool.out_width);
    Vector<T> sum{};
    for (unsigned row = rows.first; row < rows.end; ++row)
      for (unsigned column = columns.first; column < columns.end; ++column) {
        const unsigned y = place.row + pool.rows.padding - row * pool.rows.stride;
        const unsigned x = place.column + pool.columns.padding - column * pool.columns.stride;
        const unsigned number = y * pool.columns.kernel + x;
        const std::size_t window = vector_at(place, pool.out_height, pool.out_width, pool.vectors, row, column);
        const Vector<T> gradient = load(output_gradient, window);
        const Numbers<T> numbers = from[window];
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += numbers.at[k] == number ? gradient.at[k] : 0;
      }
    to.put(sum, i);
  }
}

template <class T>
class MaxPoolOp : public Op {
 public:
  MaxPoolOp(const MaxPool& operation, const Specs& inputs, Mode mode, Context& context)
      : context_(context), relu_(operation.relu) {
    expect_pool_window(operation.kernel);
    const Shape& in = inputs[0].shape;
    const Shape out = output_shape(Operation(operation), {in});
    info_.output = value_spec(out, context.type());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    inputs_ = vectors_of(channels_last(inputs[0]));
    outputs_ = vectors_of(channels_last(info_.output));
    const auto count = [](std::size_t size) { return static_cast<unsigned>(size); };
    const auto& [kernel, stride, padding, relu] = operation;
    pool_ = {.rows = {count(kernel.height), count(stride.height), count(padding.top)},
             .columns = {count(kernel.width), count(stride.width), count(padding.left)},
             .height = count(in[2]),
             .width = count(in[3]),
             .out_height = count(out[2]),
             .out_width = count(out[3]),
             .vectors = count(channels_last(info_.output).channels()) / kLanes<T>};
    if (mode == Mode::training) from_ = allocate_device(outputs_ * sizeof(Numbers<T>));
  }

  void bind(const Bindings& bindings) override {
    input_ = data<T>(bindings.inputs[0]);
    output_values_ = data<T>(bindings.output);
    output_gradient_ = data<T>(bindings.output_gradient);
    gradient_ = {bindings, 0};
  }

  void forward() override {
    launch(max_pool<T>, blocks_for(outputs_, kThreads, context_.multiprocessors), kThreads, context_.lane.get(), pool_,
           input_, output_values_, from(), relu_ ? 0.0f : -INFINITY, outputs_);
  }

  void backward(float) override {
    if (gradient_.wanted())
      launch(max_pool_backward<T>, blocks_for(inputs_, kThreads, context_.multiprocessors), kThreads,
             context_.lane.get(), pool_, output_gradient_, from(), gradient_, inputs_);
  }

 private:
  Numbers<T>* from() const { return data<Numbers<T>>(from_.view()); }

  Context& context_;
  bool relu_;
  Pool pool_;
  unsigned inputs_, outputs_;  // in vectors
  Buffer from_;                // Numbers for each output vector; empty in inference
  const T* input_ = nullptr;
  T* output_values_ = nullptr;
  const T* output_gradient_ = nullptr;
  InputGradient<T> gradient_;
};

}  // namespace

std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, Context& context) {
  return make_for<Op, MaxPoolOp>(context.type(), operation, inputs, mode, context);
}

}  // namespace annulus::cuda
