#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/operations.h"
#include "kernels/error.h"

namespace annulus::cpu {
namespace {

// Max pooling of our own, over every layout alike: oneDNN's takes half of a small network's step. Each output
// remembers which pixel of its window it came from (the first of equals), and backward hands its gradient there.
class MaxPoolOp : public Op {
 public:
  MaxPoolOp(const MaxPool& operation, const Specs& inputs, Mode mode) : pool_(operation), in_(image_layout(inputs[0])) {
    const Shape shape = output_shape(Operation(operation), {inputs[0].shape});
    if (pool_.kernel * pool_.kernel > std::numeric_limits<std::uint8_t>::max())
      fail("max pool windows of {0}x{0} are too large: at most 15x15", pool_.kernel);
    output_ = spec(shape, output_layout(inputs[0], shape));
    out_ = image_layout(output_);
    if (mode == Mode::training) from_.resize(out_.outer * out_.height * out_.width * out_.inner);
  }

  void bind(const Bindings& bindings) override {
    input_ = floats(bindings.inputs[0]).data();
    out_values_ = floats(bindings.output).data();
    if (from_.empty()) return;
    output_gradient_ = floats(bindings.output_gradient).data();
    if (bindings.input_gradients[0]) input_gradient_ = floats(bindings.input_gradients[0]).data();
  }

  void forward() override {
    for_each_row([this](std::size_t outer, std::size_t y) {
      for (std::size_t x = 0; x < out_.width; ++x) forward_window(outer, y, x);
    });
  }

  void backward(float) override {
    if (input_gradient_ == nullptr) return;
    const std::size_t plane = in_.height * in_.width * in_.inner;
#pragma omp parallel for schedule(static)
    for (std::size_t outer = 0; outer < in_.outer; ++outer) {
      std::fill_n(input_gradient_ + outer * plane, plane, 0.0f);
      for (std::size_t y = 0; y < out_.height; ++y)
        for (std::size_t x = 0; x < out_.width; ++x) backward_window(outer, y, x);
    }
  }

 private:
  // The same kind of layout as the input's.
  static dnnl::memory::desc output_layout(const TensorSpec& input, const Shape& shape) {
    const auto probe = dnnl::pooling_forward::primitive_desc({dnnl::prop_kind::forward_inference,
                                                              dnnl::algorithm::pooling_max,
                                                              desc(input),
                                                              any_layout(shape),
                                                              {1, 1},
                                                              {static_cast<dnnl_dim_t>(input.shape[2] - shape[2] + 1),
                                                               static_cast<dnnl_dim_t>(input.shape[3] - shape[3] + 1)},
                                                              {0, 0},
                                                              {0, 0}},
                                                             engine());
    return probe.dst_desc();
  }

  template <class Body>
  void for_each_row(const Body& body) const {
#pragma omp parallel for collapse(2) schedule(static)
    for (std::size_t outer = 0; outer < out_.outer; ++outer)
      for (std::size_t y = 0; y < out_.height; ++y) body(outer, y);
  }

  // Calls body(pixel's number in the window, pixel's offset) for the pixels of a window that lie in the image.
  template <class Body>
  void for_each_pixel(std::size_t outer, std::size_t y, std::size_t x, const Body& body) const {
    for (std::size_t ky = 0; ky < pool_.kernel; ++ky) {
      const std::size_t row = y * pool_.stride + ky - pool_.padding;  // wraps to a huge number above the image
      if (row >= in_.height) continue;
      for (std::size_t kx = 0; kx < pool_.kernel; ++kx) {
        const std::size_t column = x * pool_.stride + kx - pool_.padding;
        if (column >= in_.width) continue;
        body(ky * pool_.kernel + kx, ((outer * in_.height + row) * in_.width + column) * in_.inner);
      }
    }
  }

  std::size_t output_offset(std::size_t outer, std::size_t y, std::size_t x) const {
    return ((outer * out_.height + y) * out_.width + x) * out_.inner;
  }

  void forward_window(std::size_t outer, std::size_t y, std::size_t x) {
    const std::size_t to = output_offset(outer, y, x);
    float* best = out_values_ + to;
    std::fill_n(best, in_.inner, -std::numeric_limits<float>::infinity());
    if (from_.empty()) {
      for_each_pixel(outer, y, x, [&](std::size_t, std::size_t offset) {
        const float* values = input_ + offset;
        for (std::size_t c = 0; c < in_.inner; ++c) best[c] = values[c] > best[c] ? values[c] : best[c];
      });
      return;
    }
    std::uint8_t* from = from_.data() + to;
    std::fill_n(from, in_.inner, std::uint8_t{0});
    for_each_pixel(outer, y, x, [&](std::size_t pixel, std::size_t offset) {
      const float* values = input_ + offset;
      for (std::size_t c = 0; c < in_.inner; ++c) {
        const bool larger = values[c] > best[c];
        best[c] = larger ? values[c] : best[c];
        from[c] = larger ? static_cast<std::uint8_t>(pixel) : from[c];
      }
    });
  }

  void backward_window(std::size_t outer, std::size_t y, std::size_t x) {
    const std::size_t at = output_offset(outer, y, x);
    const float* gradient = output_gradient_ + at;
    const std::uint8_t* from = from_.data() + at;
    for_each_pixel(outer, y, x, [&](std::size_t pixel, std::size_t offset) {
      float* to = input_gradient_ + offset;
      for (std::size_t c = 0; c < in_.inner; ++c) to[c] += from[c] == pixel ? gradient[c] : 0;
    });
  }

  MaxPool pool_;
  ImageLayout in_, out_{};
  std::vector<std::uint8_t> from_;  // for each output, the pixel's number in its window; empty in inference
  const float* input_ = nullptr;
  float* out_values_ = nullptr;
  const float* output_gradient_ = nullptr;
  float* input_gradient_ = nullptr;
};

class GlobalAveragePoolOp : public Op {
 public:
  GlobalAveragePoolOp(const Specs& inputs, Mode mode) : mode_(mode), input_(desc(inputs[0])) {
    const Shape& shape = inputs[0].shape;
    const Shape output{shape[0], shape[1], 1, 1};
    const dnnl::memory::dims window{static_cast<dnnl_dim_t>(shape[2]), static_cast<dnnl_dim_t>(shape[3])};
    const auto kind = mode == Mode::training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
    forward_ = {{kind, kAlgorithm, input_, any_layout(output), {1, 1}, window, {0, 0}, {0, 0}}, engine()};
    output_ = spec(output, forward_.dst_desc());
    if (mode == Mode::training)
      backward_ = {{kAlgorithm, input_, forward_.dst_desc(), {1, 1}, window, {0, 0}, {0, 0}}, engine(), forward_};
  }

  void bind(const Bindings& bindings) override {
    run_forward_ = {dnnl::pooling_forward(forward_),
                    {{DNNL_ARG_SRC, memory_at(input_, bindings.inputs[0])},
                     {DNNL_ARG_DST, memory_at(desc(output_), bindings.output)}}};
    if (mode_ == Mode::inference || !bindings.input_gradients[0]) return;
    run_backward_ = {dnnl::pooling_backward(backward_),
                     {{DNNL_ARG_DIFF_DST, memory_at(desc(output_), bindings.output_gradient)},
                      {DNNL_ARG_DIFF_SRC, memory_at(input_, bindings.input_gradients[0])}}};
  }

  void forward() override { run_forward_.run(); }
  void backward(float) override { run_backward_.run(); }

 private:
  static constexpr auto kAlgorithm = dnnl::algorithm::pooling_avg_exclude_padding;

  Mode mode_;
  dnnl::memory::desc input_;
  dnnl::pooling_forward::primitive_desc forward_;
  dnnl::pooling_backward::primitive_desc backward_;
  Primitive run_forward_, run_backward_;
};

}  // namespace

std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<MaxPoolOp>(operation, inputs, mode);
}

std::unique_ptr<Op> plan(const GlobalAveragePool&, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<GlobalAveragePoolOp>(inputs, mode);
}

}  // namespace annulus::cpu
