#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"

namespace annulus::cpu {

// The gradient of the weights (and biases) of a network's first convolution: few input channels, plain images.
// oneDNN's kernel pads such an input to a whole vector of channels and multiplies zeros: eight times the work for one
// channel. For AVX-512 it has one that does not, and which is faster than this one.
//
// Here a vector is eight output channels. For an output block, an input channel and a few rows of the kernel, the sums
// of all taps stay in registers while the loop goes over the image: one load of the output's gradient, and one
// broadcast of an input pixel for each tap.
class FirstConvolutionGradient {
 public:
  // Returns whether this class supports the operation and the layouts: a square kernel; at most 4 input channels, in
  // plain layout; outputs and weights in blocks of 8 output channels (oneDNN's nChw8c and Ohwi8o).
  static bool supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                       const TensorSpec& weights);

  FirstConvolutionGradient(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

  void allocate();  // allocates work memory; to be called before the first run()

  // Writes `weights` and, unless it is empty, `bias`.
  void run(const float* input, const float* output_gradient, std::span<float> weights, std::span<float> bias);

 private:
  template <int kernel>
  void run_kernel(const float* input, const float* output_gradient);
  void pad(const float* image, float* padded) const;

  std::size_t kernel_, stride_, padding_;
  std::size_t batch_, channels_, height_, width_;  // of the input
  std::size_t padded_height_, padded_width_;
  std::size_t blocks_, output_height_, output_width_;
  std::size_t slice_;                        // floats of a block's weights, and of its bias
  std::vector<std::vector<float>> partial_;  // each thread's sums over its images: weights and bias of each block
  std::vector<std::vector<float>> padded_;   // each thread's current image with its border of zeros
};

}  // namespace annulus::cpu
