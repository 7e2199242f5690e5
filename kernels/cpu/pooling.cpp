#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/operations.h"
#include "kernels/error.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kVector = 8;  // floats in a vector register

// `size` values that are worked on at once.
template <std::size_t size>
struct Lanes {
  typedef float Floats __attribute__((vector_size(size * sizeof(float)), aligned(alignof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(size * sizeof(float)), aligned(alignof(float))));
  typedef std::uint8_t Bytes __attribute__((vector_size(size), aligned(1)));
};

template <class Vector, class Element>
Vector load(const Element* from) {
  return *reinterpret_cast<const Vector*>(from);
}

template <class Vector, class Element>
void store(Vector values, Element* to) {
  *reinterpret_cast<Vector*>(to) = values;
}

// Max pooling of our own, over every layout alike: oneDNN's takes half of a small network's step. Each output
// remembers which pixel of its window it came from (the first of equals), and backward hands its gradient there.
class MaxPoolOp : public Op {
 public:
  MaxPoolOp(const MaxPool& operation, const Specs& inputs, Mode mode) : pool_(operation), in_(image_layout(inputs[0])) {
    const Shape shape = output_shape(Operation(operation), {inputs[0].shape});
    if (pool_.kernel * pool_.kernel > kNoPixel)
      fail("max pool windows of {0}x{0} are too large: at most 15x15", pool_.kernel);
    output_ = spec(shape, output_layout(inputs[0], shape));
    out_ = image_layout(output_);
    tiled_ = pool_.padding == 0 && pool_.stride == pool_.kernel && in_.height == out_.height * pool_.stride &&
             in_.width == out_.width * pool_.stride;
    if (mode == Mode::training) from_.resize(out_.outer * out_.height * out_.width * out_.inner);
  }

  void bind(const Bindings& bindings) override {
    input_ = floats(bindings.inputs[0]).data();
    output_values_ = floats(bindings.output).data();
    if (from_.empty()) return;
    output_gradient_ = floats(bindings.output_gradient).data();
    input_gradient_ = floats(bindings.input_gradients[0]).data();
  }

  void forward() override {
    const bool training = !from_.empty();
    for_each_plane([&](std::size_t outer, auto block) {
      training ? forward_plane<block, true>(outer) : forward_plane<block, false>(outer);
    });
  }

  void backward(float) override {
    if (input_gradient_ == nullptr) return;
    for_each_plane([&](std::size_t outer, auto block) {
      tiled_ ? backward_plane<block, true>(outer) : backward_plane<block, false>(outer);
    });
  }

 private:
  static constexpr std::uint8_t kNoPixel = 255;  // the ReLU let nothing through

  // The pixels of the image that a window covers: rows and columns that lie outside are left out.
  struct Window {
    std::size_t row, rows_end, column, columns_end;
    std::size_t first_row, first_column;  // of the window itself; may lie before 0, and wrap
  };

  // The same kind of layout as the input's.
  static dnnl::memory::desc output_layout(const TensorSpec& input, const Shape& shape) {
    const dnnl::memory::dims window{static_cast<dnnl_dim_t>(input.shape[2] - shape[2] + 1),
                                    static_cast<dnnl_dim_t>(input.shape[3] - shape[3] + 1)};
    const auto probe = dnnl::pooling_forward::primitive_desc({dnnl::prop_kind::forward_inference,
                                                              dnnl::algorithm::pooling_max,
                                                              desc(input),
                                                              any_layout(shape),
                                                              {1, 1},
                                                              window,
                                                              {0, 0},
                                                              {0, 0}},
                                                             engine());
    return probe.dst_desc();
  }

  // Calls body(plane, block): planes on all threads, channels in blocks that fill a vector register where they can.
  template <class Body>
  void for_each_plane(const Body& body) const {
    const bool vectors = in_.inner % kVector == 0;
#pragma omp parallel for schedule(static)
    for (std::size_t outer = 0; outer < in_.outer; ++outer)
      if (vectors)
        body(outer, std::integral_constant<std::size_t, kVector>{});
      else
        body(outer, std::integral_constant<std::size_t, 1>{});
  }

  Window window(std::size_t y, std::size_t x) const {
    const auto clip = [&](std::size_t position, std::size_t extent, std::size_t& begin, std::size_t& end) {
      const std::size_t start = position * pool_.stride;
      begin = start > pool_.padding ? start - pool_.padding : 0;
      end = std::min(start + pool_.kernel - pool_.padding, extent);
      return start - pool_.padding;
    };
    Window w{};
    w.first_row = clip(y, in_.height, w.row, w.rows_end);
    w.first_column = clip(x, in_.width, w.column, w.columns_end);
    return w;
  }

  // Calls body(pixel's number in the window, its offset) for the window's pixels in the image.
  template <class Body>
  void for_each_pixel(std::size_t outer, const Window& w, const Body& body) const {
    for (std::size_t row = w.row; row < w.rows_end; ++row)
      for (std::size_t column = w.column; column < w.columns_end; ++column)
        body(static_cast<std::int32_t>((row - w.first_row) * pool_.kernel + (column - w.first_column)),
             ((outer * in_.height + row) * in_.width + column) * in_.inner);
  }

  // Calls body(window, offset of its output, channel) for all of a plane's windows and channel blocks.
  template <std::size_t block, class Body>
  void for_each_window(std::size_t outer, const Body& body) const {
    for (std::size_t y = 0; y < out_.height; ++y)
      for (std::size_t x = 0; x < out_.width; ++x)
        for (std::size_t channel = 0; channel < in_.inner; channel += block)
          body(window(y, x), ((outer * out_.height + y) * out_.width + x) * out_.inner + channel, channel);
  }

  template <std::size_t block, bool training>
  void forward_plane(std::size_t outer) {
    for_each_window<block>(outer, [&](const Window& w, std::size_t to, std::size_t channel) {
      using Floats = typename Lanes<block>::Floats;
      using Ints = typename Lanes<block>::Ints;
      Floats best = Floats{} + (pool_.relu ? 0.0f : -std::numeric_limits<float>::infinity());
      Ints from = Ints{} + kNoPixel;
      for_each_pixel(outer, w, [&](std::int32_t pixel, std::size_t offset) {
        const auto values = load<Floats>(input_ + offset + channel);
        // True for NaN, and never again after one: a network that has diverged must not look healthy.
        const Ints larger = ~(values <= best) & (best == best);
        best = larger ? values : best;
        if (training) from = larger ? Ints{} + pixel : from;
      });
      store(best, output_values_ + to);
      if (training) store(__builtin_convertvector(from, typename Lanes<block>::Bytes), from_.data() + to);
    });
  }

  // Where the windows are tiles of the image each pixel is written once, otherwise gradients are added up.
  template <std::size_t block, bool tiled>
  void backward_plane(std::size_t outer) {
    const std::size_t plane = in_.height * in_.width * in_.inner;
    if (!tiled) std::fill_n(input_gradient_ + outer * plane, plane, 0.0f);
    for_each_window<block>(outer, [&](const Window& w, std::size_t at, std::size_t channel) {
      using Floats = typename Lanes<block>::Floats;
      using Ints = typename Lanes<block>::Ints;
      const auto gradient = load<Floats>(output_gradient_ + at);
      const Ints from = __builtin_convertvector(load<typename Lanes<block>::Bytes>(from_.data() + at), Ints);
      for_each_pixel(outer, w, [&](std::int32_t pixel, std::size_t offset) {
        float* to = input_gradient_ + offset + channel;
        const Floats passed = from == pixel ? gradient : Floats{};
        store(tiled ? passed : load<Floats>(to) + passed, to);
      });
    });
  }

  MaxPool pool_;
  ImageLayout in_, out_{};
  bool tiled_ = false;
  std::vector<std::uint8_t> from_;  // for each output, the pixel's number in its window; empty in inference
  const float* input_ = nullptr;
  float* output_values_ = nullptr;
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
