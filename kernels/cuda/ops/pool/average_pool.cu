#include "kernels/average_windows.h"

#include "kernels/cuda/ops/loops/image_place.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/limits.h"
#include "kernels/cuda/ops/plan/operations.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Along an axis: the pixels that an output averages, or the outputs with windows that contain a pixel.
struct Line {
  unsigned begin, end;
  float factor;  // the output's
};

// AverageAxis, in device memory.
struct Axis {
  const Line *outputs, *pixels;
  unsigned output_count, pixel_count;
};

struct Windows {
  Axis rows, columns;
  unsigned vectors;  // in a pixel
};

template <class T>
__global__ void average(Predecessor previous, Windows windows, const T* input, T* output, unsigned outputs) {
  await(previous);
  const auto& [rows, columns, vectors] = windows;
  for (std::size_t i = grid_thread(); i < outputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), rows.output_count, columns.output_count, vectors);
    const Line down = rows.outputs[place.row], across = columns.outputs[place.column];
    Vector<T> sum{};
    for (unsigned row = down.begin; row < down.end; ++row)
      for (unsigned column = across.begin; column < across.end; ++column) {
        const Vector<T> values =
            load(input, vector_at(place, rows.pixel_count, columns.pixel_count, vectors, row, column));
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += values.at[k];
      }
    for (float& value : sum.at) value *= down.factor * across.factor;
    store(sum, output, i);
  }
}

// Each input pixel collects gradients from the windows that contain it.
template <class T>
__global__ void average_backward(Predecessor previous, Windows windows, const T* output_gradient, InputGradient<T> to,
                                 unsigned inputs) {
  await(previous);
  const auto& [rows, columns, vectors] = windows;
  for (std::size_t i = grid_thread(); i < inputs; i += grid_threads()) {
    const Place place(static_cast<unsigned>(i), rows.pixel_count, columns.pixel_count, vectors);
    const Line down = rows.pixels[place.row], across = columns.pixels[place.column];
    Vector<T> sum{};
    for (unsigned row = down.begin; row < down.end; ++row)
      for (unsigned column = across.begin; column < across.end; ++column) {
        const Vector<T> gradient =
            load(output_gradient, vector_at(place, rows.output_count, columns.output_count, vectors, row, column));
        const float factor = rows.outputs[row].factor * columns.outputs[column].factor;
        for (unsigned k = 0; k < kLanes<T>; ++k) sum.at[k] += factor * gradient.at[k];
      }
    to.put(sum, i);
  }
}

// The outputs' lines, followed by the pixels'.
Buffer lines_of(const AverageAxis& axis) {
  const auto line = [](const Range& range, float factor) {
    return Line{static_cast<unsigned>(range.begin), static_cast<unsigned>(range.end), factor};
  };
  std::vector<Line> lines;
  for (std::size_t i = 0; i < axis.windows.size(); ++i) lines.push_back(line(axis.windows[i], axis.factors[i]));
  for (const Range& readers : axis.readers) lines.push_back(line(readers, 0));
  return to_device(std::as_bytes(std::span(lines)));
}

Axis axis_at(const Buffer& lines, const AverageAxis& axis) {
  const auto* outputs = data<Line>(lines.view());
  return {outputs, outputs + axis.windows.size(), static_cast<unsigned>(axis.windows.size()),
          static_cast<unsigned>(axis.readers.size())};
}

template <class T>
class AveragePoolOp : public Op {
 public:
  AveragePoolOp(const AverageWindows& windows, const Shape& shape, const TensorSpec& input, Context& context)
      : context_(context), row_lines_(lines_of(windows.rows)), column_lines_(lines_of(windows.columns)) {
    info_.output = value_spec(shape, context.type());
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    inputs_ = vectors_of(channels_last(input));
    outputs_ = vectors_of(channels_last(info_.output));
    windows_ = {axis_at(row_lines_, windows.rows), axis_at(column_lines_, windows.columns),
                static_cast<unsigned>(channels_last(info_.output).channels()) / kLanes<T>};
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    launch(average<T>, blocks_for(outputs_, kThreads, context_.multiprocessors), kThreads, context_.lane.get(),
           windows_, data<T>(bindings_.inputs[0]), data<T>(bindings_.output), outputs_);
  }

  void backward(float) override {
    if (const InputGradient<T> to(bindings_, 0); to.wanted())
      launch(average_backward<T>, blocks_for(inputs_, kThreads, context_.multiprocessors), kThreads,
             context_.lane.get(), windows_, data<T>(bindings_.output_gradient), to, inputs_);
  }

 private:
  Context& context_;
  unsigned inputs_, outputs_;  // in vectors
  Buffer row_lines_, column_lines_;
  Windows windows_;
  Bindings bindings_;
};

template <class Pool>
std::unique_ptr<Op> plan_average(const Pool& pool, const TensorSpec& input, Context& context) {
  return make_for<Op, AveragePoolOp>(context.type(), average_windows(pool, input.shape),
                                     output_shape(Operation(pool), {input.shape}), input, context);
}

}  // namespace

std::unique_ptr<Op> plan(const AveragePool& operation, const Specs& inputs, Mode, Context& context) {
  return plan_average(operation, inputs[0], context);
}

std::unique_ptr<Op> plan(const AdaptiveAveragePool& operation, const Specs& inputs, Mode, Context& context) {
  return plan_average(operation, inputs[0], context);
}

}  // namespace annulus::cuda
