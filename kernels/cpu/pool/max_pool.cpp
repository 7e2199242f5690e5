#include <algorithm>
#include <limits>

#include "kernels/cpu/plan/image_vectors.h"
#include "kernels/cpu/plan/operations.h"

namespace annulus::cpu {
namespace {

// Our own max pooling, for all layouts: oneDNN's takes half of a small network's step. Forward stores for each output
// the number of the largest pixel in the window (the first if equal), and backward passes the gradient to this pixel.
class MaxPoolOp : public Op {
 public:
  MaxPoolOp(const MaxPool& operation, const Specs& inputs, Mode mode)
      : pool_(operation), training_(mode == Mode::training), in_(image_layout(inputs[0])) {
    const Shape shape = output_shape(Operation(operation), {inputs[0].shape});
    info_.output = spec(shape, layout_like(inputs[0], shape));
    info_.inputs = {{.backward_reads = false}};
    info_.backward_reads_output = false;
    out_ = image_layout(info_.output);
    tiled_ = pool_.padding == 0 && pool_.stride == pool_.kernel;
  }

  void bind(const Bindings& bindings) override {
    input_ = floats(bindings.inputs[0]).data();
    output_values_ = floats(bindings.output).data();
    if (!training_) return;
    from_.resize(out_.outer * out_.height * out_.width * out_.inner);
    output_gradient_ = floats(bindings.output_gradient).data();
    input_gradient_ = floats(bindings.input_gradients[0]).data();
  }

  void forward() override {
    for_each_plane(in_, [&](std::size_t outer, auto block) {
      with_tiles([&](auto tile) {
        training_ ? forward_plane<block, tile, true>(outer) : forward_plane<block, tile, false>(outer);
      });
    });
  }

  void backward(float) override {
    if (input_gradient_ == nullptr) return;
    for_each_plane(in_, [&](std::size_t outer, auto block) {
      with_tiles([&](auto tile) { backward_plane<block, tile>(outer); });
    });
  }

 private:
  static constexpr std::uint8_t kNoPixel = MaxPool::kMostPixels;  // the ReLU was inactive

  // Calls body(size). `size` is a constant: 2 if the windows are 2x2 tiles, else 0.
  template <class Body>
  void with_tiles(const Body& body) const {
    if (tiled_ && pool_.kernel == Extent(2))
      body(std::integral_constant<std::size_t, 2>{});
    else
      body(std::integral_constant<std::size_t, 0>{});
  }

  // The image's pixels that a window covers, without rows and columns outside the image.
  struct Window {
    std::size_t row, rows_end, column, columns_end;
    std::size_t first_row, first_column;  // where the whole window begins; may be before 0, and so wrap around
  };

  Window window(std::size_t y, std::size_t x) const {
    const auto clip = [](std::size_t start, std::size_t kernel, std::size_t padding, std::size_t extent,
                         std::size_t& begin, std::size_t& end) {
      begin = start > padding ? start - padding : 0;
      end = std::min(start + kernel - padding, extent);
      return start - padding;
    };
    const auto& [kernel, stride, padding, relu] = pool_;
    Window w{};
    w.first_row = clip(y * stride.height, kernel.height, padding.top, in_.height, w.row, w.rows_end);
    w.first_column = clip(x * stride.width, kernel.width, padding.left, in_.width, w.column, w.columns_end);
    return w;
  }

  // Calls body(pixel's number in the window, pixel's offset) for the window's pixels that are inside the image.
  template <std::size_t tile, class Body>
  [[gnu::always_inline]] void for_each_pixel(std::size_t outer, const Window& w, const Body& body) const {
    if constexpr (tile > 0) {
      const std::size_t first = ((outer * in_.height + w.row) * in_.width + w.column) * in_.inner;
#pragma GCC unroll 4
      for (std::size_t pixel = 0; pixel < tile * tile; ++pixel)
        body(static_cast<std::int32_t>(pixel), first + (pixel / tile * in_.width + pixel % tile) * in_.inner);
      return;
    }
    for (std::size_t row = w.row; row < w.rows_end; ++row)
      for (std::size_t column = w.column; column < w.columns_end; ++column)
        body(static_cast<std::int32_t>((row - w.first_row) * pool_.kernel.width + (column - w.first_column)),
             ((outer * in_.height + row) * in_.width + column) * in_.inner);
  }

  // Calls body(window, output's offset, channel) for all of a plane's windows and channel blocks.
  template <std::size_t block, std::size_t tile, class Body>
  void for_each_window(std::size_t outer, const Body& body) const {
    for (std::size_t y = 0; y < out_.height; ++y)
      for (std::size_t x = 0; x < out_.width; ++x)
        for (std::size_t channel = 0; channel < in_.inner; channel += block)
          body(tile > 0 ? Window{tile * y, 0, tile * x, 0, 0, 0} : window(y, x),
               ((outer * out_.height + y) * out_.width + x) * out_.inner + channel, channel);
  }

  template <std::size_t block, std::size_t tile, bool training>
  void forward_plane(std::size_t outer) {
    for_each_window<block, tile>(outer, [&](const Window& w, std::size_t to, std::size_t channel) {
      using Floats = typename Lanes<block>::Floats;
      using Ints = typename Lanes<block>::Ints;
      Floats best = Floats{} + (pool_.relu ? 0.0f : -std::numeric_limits<float>::infinity());
      Ints from = Ints{} + kNoPixel;
      for_each_pixel<tile>(outer, w, [&](std::int32_t pixel, std::size_t offset) {
        const auto values = load<Floats>(input_ + offset + channel);
        // NaN is larger than any number, and nothing is larger than NaN: so divergence is not hidden.
        const Ints larger = ~(values <= best) & (best == best);
        best = larger ? values : best;
        if (training) from = larger ? Ints{} + pixel : from;
      });
      store(best, output_values_ + to);
      if (training) store(__builtin_convertvector(from, typename Lanes<block>::Bytes), from_.data() + to);
    });
  }

  // Zeroes a plane's pixels beyond the tiles.
  void clear_rest(float* plane) const {
    const std::size_t rows = out_.height * pool_.stride.height, columns = out_.width * pool_.stride.width;
    const std::size_t row_size = in_.width * in_.inner;
    for (std::size_t row = 0; columns < in_.width && row < rows; ++row)
      std::fill(plane + row * row_size + columns * in_.inner, plane + (row + 1) * row_size, 0.0f);
    std::fill(plane + rows * row_size, plane + in_.height * row_size, 0.0f);
  }

  // If the windows are tiles, each pixel is written once; otherwise gradients are added up.
  template <std::size_t block, std::size_t tile>
  void backward_plane(std::size_t outer) {
    const std::size_t plane = in_.height * in_.width * in_.inner;
    if (tiled_)
      clear_rest(input_gradient_ + outer * plane);
    else
      std::fill_n(input_gradient_ + outer * plane, plane, 0.0f);
    for_each_window<block, tile>(outer, [&](const Window& w, std::size_t at, std::size_t channel) {
      using Floats = typename Lanes<block>::Floats;
      using Ints = typename Lanes<block>::Ints;
      const auto gradient = load<Floats>(output_gradient_ + at);
      const Ints from = __builtin_convertvector(load<typename Lanes<block>::Bytes>(from_.data() + at), Ints);
      for_each_pixel<tile>(outer, w, [&](std::int32_t pixel, std::size_t offset) {
        float* to = input_gradient_ + offset + channel;
        const Floats passed = from == pixel ? gradient : Floats{};
        store(tile > 0 || tiled_ ? passed : load<Floats>(to) + passed, to);
      });
    });
  }

  MaxPool pool_;
  bool training_;
  ImageLayout in_, out_{};
  bool tiled_ = false;
  std::vector<std::uint8_t> from_;  // for each output, the pixel's number in the window; empty in inference
  const float* input_ = nullptr;
  float* output_values_ = nullptr;
  const float* output_gradient_ = nullptr;
  float* input_gradient_ = nullptr;
};

}  // namespace

std::unique_ptr<Op> plan(const MaxPool& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<MaxPoolOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
