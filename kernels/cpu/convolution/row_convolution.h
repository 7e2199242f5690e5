#pragma once

#include <span>

#include "kernels/device.h"

namespace annulus::cpu {

// A 5x5 convolution with stride 1 over few input channels, as in LeNet: at most a single block (vectors.h). oneDNN
// computes with all channels in the block, including padding, and keeps too few sums in registers to be fast.
//
// A vector is a block of output channels. The sums for a run of neighbouring outputs in a row stay in registers; a
// window row moves along the input's row, and each input pixel is loaded once and added to all sums that it belongs
// to:
//
//     input    x  x  x  x  x  x  x ...        sum[i - k] += weights[k] * input[i],   k = 0 ... 4
//     sums     |--window--|
//                 |--window--|
//
// The input's gradient works in reverse: a vector is the block of input channels, and each pixel of the output's
// gradient is added to five sums. For the weights' gradient, registers hold the sums for some window rows. All three
// results are bit-identical for any thread count: each image is processed by a single thread; the weights' gradients
// are added up in the images' order, within groups of a few images, and then over all groups.
class RowConvolution {
 public:
  // Returns whether this class supports the operation and the layouts: inputs are plain (at most 4 channels) or a
  // single block of channels, outputs are blocks of channels, weights are oneDNN's Ohwi8o (or 16 for 8); rows are long
  // enough.
  static bool supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                       const TensorSpec& weights);

  RowConvolution(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

  // Returns the scratch memory's size, sufficient for each pass.
  std::size_t scratch_bytes(Mode mode) const;

  // `bias` may be empty. With `relu`, the output is max(0, .).
  void forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias, bool relu,
               std::span<float> output, DeviceView scratch) const;
  // REQUIRES: the input's layout is not plain.
  void backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                     std::span<float> input_gradient, DeviceView scratch) const;
  // Writes `weights` and, unless it is empty, `bias`.
  void backward_weights(std::span<const float> input, std::span<const float> output_gradient, std::span<float> weights,
                        std::span<float> bias, DeviceView scratch) const;

 private:
  template <std::size_t pixel>
  void forward_image(const float* image, const float* weights, const float* bias, bool relu, float* output) const;
  template <std::size_t pixel>
  void add_weight_gradient(const float* image, const float* gradient, float* sums) const;
  template <std::size_t pixel, int blocks, int rows>
  void add_window_rows(const float* image, const float* gradient, float* sums) const;
  void scatter_image(const float* gradient, const float* weights, float* padded) const;

  const float* padded(const float* image, float* to) const;
  template <class Body>
  void with_pixel(const Body& body) const;

  std::size_t input_floats() const;   // in an image
  std::size_t output_floats() const;  // in an image's output
  std::size_t padded_floats() const;
  std::size_t block_floats() const;  // in the weights for a block of outputs

  std::size_t threads_, batch_, padding_;
  std::size_t channels_, height_, width_;  // the input's
  bool plain_;                             // the input's layout
  std::size_t padded_height_, padded_width_;
  std::size_t blocks_, output_height_, output_width_;
};

}  // namespace annulus::cpu
