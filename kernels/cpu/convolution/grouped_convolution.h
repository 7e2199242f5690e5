#pragma once

#include <span>
#include <vector>

#include "kernels/device.h"

namespace annulus::cpu {

// A convolution in groups with few channels: depthwise (a single channel), or 2, 4 or 8 if a block has more. A vector
// is a block of channels, and a whole number of groups. Each pixel in a block is multiplied by a vector of weights for
// each window pixel and each channel in a group, so speed depends on keeping the sums for a run of neighbouring outputs
// in registers while a window row is applied to them.
//
// Along a row, an output j is the sum of weights[k] * input[j * step + offset[k]] over the taps k in a window row. The
// input's gradient has the same form: with stride s, its pixels r, r + s, r + 2s, ... for each r < s are sums over
// neighbouring outputs' gradients with every s-th tap. All results are bit-identical for any thread count.
class GroupedConvolution {
 public:
  // Returns whether this class supports the operation and the input's layout: blocks of channels (vectors.h), or
  // channels-last. The output has the same layout. `fixed`: the layouts that the parameters already have, if any.
  static bool supports(const Convolution& operation, const TensorSpec& input, const std::vector<TensorSpec>& fixed);
  static TensorSpec output(const Convolution& operation, const TensorSpec& input);
  static std::vector<TensorSpec> parameters(const Convolution& operation, const TensorSpec& input);

  GroupedConvolution(const Convolution& operation, const TensorSpec& input, const TensorSpec& output);

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
  struct Tap {
    std::ptrdiff_t offset;  // from the first pixel that an output reads, in pixels
    std::size_t weight;     // the tap's place in the window's row or column
  };

  // Along an axis: outputs first, first + to_step, ... (`count` outputs) are sums over the taps; output number j reads
  // the input's pixels j * from_step + offset, if they exist. All exist for outputs in `inside`.
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

  // A plane is an image's block of channels.
  struct Images {
    std::size_t height, width;
    std::size_t floats() const;  // in a plane
  };

  // A direction of the convolution.
  struct Correlation {
    const std::vector<Line>&rows, &columns;
    const Images &source, &target;
  };

  template <std::size_t width>
  void correlate(const Correlation& correlation, const float* from, const float* weights, const float* bias, bool relu,
                 float* to) const;
  // Applies a correlation to all planes.
  void correlate_all(const Correlation& correlation, const float* from, const float* weights,
                     std::span<const float> bias, bool relu, float* to, DeviceView scratch) const;
  template <std::size_t width>
  void add_weight_gradient(const float* image, const float* gradient, float* sums) const;

  std::size_t block_weights() const;  // floats, for a block of channels
  const float* transposed(std::span<const float> weights, DeviceView scratch) const;

  // Returns a plane with adjacent pixels: the plane itself, or a copy in the calling thread's part of the scratch if
  // the images are channels-last.
  const float* packed(const float* images, const Images& size, std::size_t plane, float* copy) const;
  void unpack(const float* copy, const Images& size, std::size_t plane, float* images) const;
  float* own_planes(DeviceView scratch) const;  // an input's and an output's

  Extent kernel_;
  std::size_t width_;  // channels in a group
  std::size_t batch_, channels_, blocks_;
  bool channels_last_;
  Images input_, output_;
  std::vector<Line> forward_rows_, forward_columns_, backward_rows_, backward_columns_;
  std::size_t planes_floats_;  // in all threads' own planes
};

}  // namespace annulus::cpu
