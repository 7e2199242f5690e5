#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"

namespace annulus::cpu {

// A depthwise convolution: one group for each channel. A vector is a block of channels, and each of its pixels is
// multiplied by one vector of weights for each pixel of the window, so its speed depends on keeping the sums of a run
// of neighbouring outputs in registers while a row of the window is applied to them.
//
// Along a row, an output j is the sum of weights[k] * input[j * step + offset[k]] over the taps k of a window's row.
// The input's gradient has the same form: with stride s, its pixels r, r + s, r + 2s, ... for each r < s are sums over
// neighbouring outputs' gradients with every s-th tap. All results are bit-identical for any number of threads.
class DepthwiseConvolution {
 public:
  // Returns whether this class supports the operation and the layouts: blocks of channels (vectors.h), and weights in
  // oneDNN's Goihw16g (or 8g).
  static bool supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                       const TensorSpec& weights);

  DepthwiseConvolution(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

  // Returns the size of the scratch memory, which is sufficient for each of the passes.
  std::size_t scratch_bytes(Mode mode) const;

  // `bias` may be empty. With `relu`, the output is max(0, .).
  void forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias, bool relu,
               std::span<float> output, DeviceView scratch) const;
  void backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                     std::span<float> input_gradient, DeviceView scratch) const;
  // Writes `weights` and, unless it is empty, `bias`.
  void backward_weights(std::span<const float> input, std::span<const float> output_gradient, std::span<float> weights,
                        std::span<float> bias, DeviceView scratch) const;

 private:
  struct Tap {
    std::ptrdiff_t offset;  // from the first pixel that an output reads, in pixels
    std::size_t weight;     // its place in the window's row or column
  };

  // Along one axis: outputs first, first + to_step, ... `count` of them are sums over the taps, of which output number
  // j reads the input's pixels j * from_step + offset, if they exist. All exist for outputs in `inside`.
  struct Line {
    std::size_t first, to_step, count, from_step;
    std::vector<Tap> taps;
    Range inside;
  };

  static Line line(Line line, std::size_t pixels);
  static std::vector<Line> forward_lines(const Convolution& operation, bool rows, std::size_t pixels,
                                         std::size_t outputs);
  static std::vector<Line> backward_lines(const Convolution& operation, bool rows, std::size_t pixels,
                                          std::size_t outputs);
  struct Images {
    std::size_t height, width;
    std::size_t floats() const;  // of a block of channels
  };

  void correlate(const std::vector<Line>& rows, const std::vector<Line>& columns, const Images& source,
                 const Images& target, const float* from, const float* weights, const float* bias, bool relu,
                 float* to) const;
  void add_weight_gradient(const float* image, const float* gradient, float* sums) const;

  Extent kernel_;
  std::size_t batch_, channels_, blocks_;
  Images input_, output_;
  std::vector<Line> forward_rows_, forward_columns_, backward_rows_, backward_columns_;
};

}  // namespace annulus::cpu
