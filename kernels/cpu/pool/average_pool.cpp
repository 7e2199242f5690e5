#include "kernels/average_windows.h"

#include "kernels/cpu/plan/image_vectors.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

class AveragePoolOp : public Op {
 public:
  AveragePoolOp(const AverageWindows& windows, const Shape& shape, const TensorSpec& input)
      : windows_(windows), in_(image_layout(input)) {
    info_.output = spec(shape, layout_like(input, shape));
    info_.inputs = {{.backward_reads = false, .adds_to_gradient = true}};
    info_.backward_reads_output = false;
    out_ = image_layout(info_.output);
  }

  void bind(const Bindings& bindings) override { bindings_ = bindings; }

  void forward() override {
    for_each_plane(in_, [&](std::size_t outer, auto block) { forward_plane<block>(outer); });
  }

  void backward(float) override {
    if (!bindings_.input_gradients[0]) return;
    for_each_plane(in_, [&](std::size_t outer, auto block) { backward_plane<block>(outer); });
  }

 private:
  // Calls body(row, column, pixel's offset) for all of a plane's pixels.
  template <class Body>
  static void for_each_pixel(const ImageLayout& images, std::size_t outer, const Range& rows, const Range& columns,
                             const Body& body) {
    for (std::size_t y = rows.begin; y < rows.end; ++y)
      for (std::size_t x = columns.begin; x < columns.end; ++x)
        body(y, x, ((outer * images.height + y) * images.width + x) * images.inner);
  }

  template <std::size_t block>
  void forward_plane(std::size_t outer) const {
    using Floats = typename Lanes<block>::Floats;
    const float* const input = floats(bindings_.inputs[0]).data();
    float* const output = floats(bindings_.output).data();
    const auto& [rows, columns] = windows_;
    for_each_pixel(out_, outer, {0, out_.height}, {0, out_.width}, [&](std::size_t y, std::size_t x, std::size_t to) {
      for (std::size_t channel = 0; channel < in_.inner; channel += block) {
        Floats sum{};
        for_each_pixel(
            in_, outer, rows.windows[y], columns.windows[x],
            [&](std::size_t, std::size_t, std::size_t from) { sum += load<Floats>(input + from + channel); });
        store(sum * (rows.factors[y] * columns.factors[x]), output + to + channel);
      }
    });
  }

  template <std::size_t block>
  void backward_plane(std::size_t outer) const {
    using Floats = typename Lanes<block>::Floats;
    const float* const output_gradient = floats(bindings_.output_gradient).data();
    float* const input_gradient = floats(bindings_.input_gradients[0]).data();
    const bool add = !bindings_.accumulate.empty() && bindings_.accumulate[0];
    const auto& [rows, columns] = windows_;
    for_each_pixel(in_, outer, {0, in_.height}, {0, in_.width},
                   [&](std::size_t row, std::size_t column, std::size_t to) {
                     for (std::size_t channel = 0; channel < in_.inner; channel += block) {
                       Floats sum = add ? load<Floats>(input_gradient + to + channel) : Floats{};
                       for_each_pixel(out_, outer, rows.readers[row], columns.readers[column],
                                      [&](std::size_t y, std::size_t x, std::size_t from) {
                                        sum += load<Floats>(output_gradient + from + channel) *
                                               (rows.factors[y] * columns.factors[x]);
                                      });
                       store(sum, input_gradient + to + channel);
                     }
                   });
  }

  AverageWindows windows_;
  ImageLayout in_, out_{};
  Bindings bindings_;
};

template <class Pool>
std::unique_ptr<Op> plan_average(const Pool& pool, const TensorSpec& input) {
  return std::make_unique<AveragePoolOp>(average_windows(pool, input.shape),
                                         output_shape(Operation(pool), {input.shape}), input);
}

}  // namespace

std::unique_ptr<Op> plan(const AveragePool& operation, const Specs& inputs, Mode, const Specs&) {
  return plan_average(operation, inputs[0]);
}

std::unique_ptr<Op> plan(const AdaptiveAveragePool& operation, const Specs& inputs, Mode, const Specs&) {
  return plan_average(operation, inputs[0]);
}

}  // namespace annulus::cpu
