#include "kernels/cuda/ops/loops/chunks.h"
#include "kernels/cuda/ops/loops/image_place.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/over_vectors.h"
#include "kernels/cuda/ops/plan/operations.h"
#include "kernels/resize_taps.h"

namespace annulus::cuda {
namespace {

// ResizeTap, as kernels read it.
struct Tap {
  unsigned first, second;
  float first_weight, second_weight;

  __device__ float weight_of(unsigned pixel) const {
    return (first == pixel ? first_weight : 0) + (second == pixel ? second_weight : 0);
  }
};

// The outputs that sample a pixel.
struct Readers {
  unsigned begin, end;
};

// An axis, in device memory.
struct Axis {
  const Tap* taps;         // for each output
  const Readers* readers;  // for each pixel
  unsigned outputs, pixels;
};

template <class T>
__global__ void resize(Predecessor previous, Axis rows, Axis columns, unsigned in_pixel, const T* input, T* output,
                       std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), rows.outputs, columns.outputs, in_pixel);
    const Tap down = rows.taps[place.row], across = columns.taps[place.column];
    Vector<T> sum{};
    const auto add = [&](unsigned row, unsigned column, float weight) {
      const Vector<T> values = load(input, vector_at(place, rows.pixels, columns.pixels, in_pixel, row, column));
      for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += weight * values.at[k];
    };
    add(down.first, across.first, down.first_weight * across.first_weight);
    add(down.first, across.second, down.first_weight * across.second_weight);
    add(down.second, across.first, down.second_weight * across.first_weight);
    add(down.second, across.second, down.second_weight * across.second_weight);
    store(sum, output, i);
  }
}

// Each input pixel collects gradients from the outputs that sample it.
template <class T>
__global__ void resize_backward(Predecessor previous, Axis rows, Axis columns, unsigned in_pixel,
                                const T* output_gradient, InputGradient<T> to, std::size_t vectors) {
  await(previous);
  for (std::size_t i = grid_thread(); i < vectors; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), rows.pixels, columns.pixels, in_pixel);
    const Readers down = rows.readers[place.row], across = columns.readers[place.column];
    Vector<T> sum{};
    for (unsigned row = down.begin; row < down.end; ++row)
      for (unsigned column = across.begin; column < across.end; ++column) {
        const float weight = rows.taps[row].weight_of(place.row) * columns.taps[column].weight_of(place.column);
        const Vector<T> gradient =
            load(output_gradient, vector_at(place, rows.outputs, columns.outputs, in_pixel, row, column));
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += weight * gradient.at[k];
      }
    to.put(sum, i);
  }
}

// Owns an axis's memory.
class AxisTables {
 public:
  AxisTables(const std::vector<ResizeTap>& taps, std::size_t pixels) {
    std::vector<Tap> all;
    std::vector<Readers> readers(pixels, {0, 0});
    for (const ResizeTap& tap : taps) {
      const auto output = static_cast<unsigned>(all.size());
      all.push_back(
          {static_cast<unsigned>(tap.first), static_cast<unsigned>(tap.second), tap.first_weight, tap.second_weight});
      for (const std::size_t pixel : {tap.first, tap.second}) {
        Readers& of = readers[pixel];
        if (of.end == 0) of.begin = output;
        of.end = output + 1;
      }
    }
    taps_ = on_device(all);
    readers_ = on_device(readers);
    axis_ = {data<Tap>(taps_.view()), data<Readers>(readers_.view()), static_cast<unsigned>(taps.size()),
             static_cast<unsigned>(pixels)};
  }

  const Axis& axis() const { return axis_; }

 private:
  Buffer taps_, readers_;
  Axis axis_;
};

template <class T>
class ResizeOp : public Op {
 public:
  ResizeOp(const Resize& operation, const TensorSpec& input, Context& context)
      : context_(context),
        rows_(row_taps(operation, input.shape), input.shape[2]),
        columns_(column_taps(operation, input.shape), input.shape[3]),
        in_pixel_(static_cast<unsigned>(channels_last(input).channels() / kLanes<T>)),
        inputs_(vectors_of(channels_last(input))) {
    info_.output = value_spec(operation.output_shape({input.shape}), context.type());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    outputs_ = vectors_of(channels_last(info_.output));
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    over_vectors(resize<T>, outputs_, context_, rows_.axis(), columns_.axis(), in_pixel_, data<T>(bindings_.inputs[0]),
                 data<T>(bindings_.output));
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      over_vectors(resize_backward<T>, inputs_, context_, rows_.axis(), columns_.axis(), in_pixel_,
                   data<T>(bindings_.output_gradient), to);
  }

 private:
  Context& context_;
  AxisTables rows_, columns_;
  unsigned in_pixel_;                 // vectors in a pixel
  std::size_t inputs_, outputs_ = 0;  // in vectors
  Bindings bindings_;
};

}  // namespace

std::unique_ptr<Op> plan(const Resize& operation, const Specs& inputs, Mode, Context& context) {
  return make_for<Op, ResizeOp>(context.type(), operation, inputs[0], context);
}

}  // namespace annulus::cuda
