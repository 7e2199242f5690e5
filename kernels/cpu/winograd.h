#pragma once

#include <span>

#include "kernels/device.h"

namespace annulus::cpu {

// A convolution of 3x3 windows one pixel apart, after Lavin and Gray, "Fast algorithms for convolutional networks"
// (CVPR 2016), after Winograd: F(2x2, 3x3) makes 2x2 outputs in 16 instead of 36 multiplications for each pair of
// channels, F(4x4, 3x3) 4x4 outputs in 36 instead of 144. The second one is used if it needs clearly fewer for the
// image: tiles that reach over its border are computed whole.
//
//   outputs = A^T [ sum over input channels of (G weights G^T) * (B^T inputs B) ] A        (* element by element)
//
// for tiles of 4x4 (6x6) inputs that overlap by two and make 2x2 (4x4) outputs each. For each of the 16 (36) elements
// the sum is a product of matrices, tiles x input channels x output channels, which is where the time goes.
//
// The gradients are those of this very formula: that of the inputs is the same convolution with turned weights, that of
// the weights G^T [ sum over tiles of (B^T inputs B) * (A outputs' gradient A^T) ] G. The bits of all three are the
// same for any number of threads.
//
// A vector is a block of channels: images lie as oneDNN's nChw8c and weights as OIhw8i8o, or 16 for 8 (vectors.h).
class Winograd {
 public:
  // Images of so many blocks of channels.
  struct Images {
    std::size_t blocks, height, width;
  };

  // Whether operation and layouts are such, and images and channels large enough to gain.
  static bool supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                       const TensorSpec& weights);

  Winograd(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

  // Memory that any of the passes works in.
  std::size_t scratch_bytes(Mode mode) const;

  // `bias` may be empty. With `relu` the outputs are those of a ReLU.
  void forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias, bool relu,
               std::span<float> output, DeviceView scratch) const;
  void backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                     std::span<float> input_gradient, DeviceView scratch) const;
  // Writes `weights` and, unless it is empty, `bias`.
  void backward_weights(std::span<const float> input, std::span<const float> output_gradient, std::span<float> weights,
                        std::span<float> bias, DeviceView scratch) const;

 private:
  static bool large_tiles(const Images& images);

  std::size_t threads_, batch_, padding_;
  Images input_, output_;
};

}  // namespace annulus::cpu
