#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"

namespace annulus::cpu {

// The weights' (and biases') gradient in a network's first convolution: few input channels, plain images. oneDNN's
// kernel pads such an input to a whole vector of channels and multiplies zeros: eight times the work for a single
// channel. (oneDNN's AVX-512 kernel does not pad, and is faster than this class.)
//
// Here a vector is eight output channels. For an output block, an input channel and a few kernel rows, the sums of all
// taps stay in registers while the loop goes over the image: one load of the output's gradient, and one broadcast of an
// input pixel for each tap.
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
  std::size_t batch_, channels_, height_, width_;  // the input's
  std::size_t padded_height_, padded_width_;
  std::size_t blocks_, output_height_, output_width_;
  std::size_t slice_;                        // floats for a block's weights, and for its bias
  std::vector<std::vector<float>> partial_;  // each thread's sums over its images: each block's weights and bias
  std::vector<std::vector<float>> padded_;   // each thread's current image, bordered with zeros
};

}  // namespace annulus::cpu
