#pragma once

#include <span>

#include "kernels/device.h"

namespace annulus::cpu {

// A 3x3 convolution with stride 1 by Winograd's method (Lavin and Gray, "Fast algorithms for convolutional networks",
// CVPR 2016): F(2x2, 3x3) computes 2x2 outputs in 16 instead of 36 multiplications for each pair of channels, F(4x4,
// 3x3) 4x4 outputs in 36 instead of 144. The latter is used if it needs clearly fewer multiplications for the image:
// tiles that extend beyond the border are computed whole.
//
//   outputs = A^T [ sum over input channels of (G weights G^T) * (B^T inputs B) ] A        (* element by element)
//
// for tiles of 4x4 (6x6) inputs that overlap by two and give 2x2 (4x4) outputs each. For each of the 16 (36) elements
// the sum is a matrix product, tiles x input channels x output channels, which takes most of the time.
//
// The gradients differentiate this formula. The inputs' gradient is the same convolution with rotated weights. The
// weights' gradient is G^T [ sum over tiles of (B^T inputs B) * (A outputs' gradient A^T) ] G. All three results are
// bit-identical for any thread count.
//
// A vector is a block of channels: images have oneDNN's layout nChw8c and weights OIhw8i8o, or 16 for 8 (vectors.h).
class Winograd {
 public:
  // Images with `blocks` blocks of channels.
  struct Images {
    std::size_t blocks, height, width;
  };

  // Returns whether this class supports the operation and the layouts, and the images' sizes and the channel count make
  // it worthwhile.
  static bool supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                       const TensorSpec& weights);

  Winograd(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

  // Returns the scratch memory's size, sufficient for each pass.
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
  static bool large_tiles(const Images& images);

  std::size_t threads_, batch_, padding_;
  Images input_, output_;
};

}  // namespace annulus::cpu
