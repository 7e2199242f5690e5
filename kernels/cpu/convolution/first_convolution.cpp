#include "kernels/cpu/convolution/first_convolution.h"

#include <omp.h>

#include <algorithm>
#include <array>

#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kVector;
using Vector = Lanes<kBlock>::Floats;

void add_to(float* to, Vector value) {
  store(load<Vector>(to) + value, to);
}

// Rows of the kernel with sums that fit into registers together.
constexpr int rows_together(int kernel) {
  return kernel <= 3 ? kernel : kernel <= 5 ? 2 : 1;
}

struct Planes {
  Extent output;
  std::size_t padded_width, stride;
};

// Adds up `rows` rows of a block's weight gradient for a single input channel. `image` is the padded input, beginning
// with the first of these rows.
template <int kernel, int rows>
void accumulate(const float* image, const float* gradient, const Planes& planes, std::size_t tap_stride, float* sums) {
  Vector taps[rows][kernel] = {};
  for (std::size_t y = 0; y < planes.output.height; ++y)
    for (std::size_t x = 0; x < planes.output.width; ++x) {
      const Vector g = load<Vector>(gradient + (y * planes.output.width + x) * kBlock);
      const float* pixel = image + y * planes.stride * planes.padded_width + x * planes.stride;
#pragma GCC unroll 16
      for (int row = 0; row < rows; ++row)
#pragma GCC unroll 16
        for (int column = 0; column < kernel; ++column)
          taps[row][column] += g * pixel[static_cast<std::size_t>(row) * planes.padded_width + column];
    }
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < kernel; ++column)
      add_to(sums + (row * kernel + column) * tap_stride, taps[row][column]);
}

}  // namespace

bool FirstConvolutionGradient::supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                                        const TensorSpec& weights) {
  constexpr std::array kernels{1, 3, 5, 7, 11};
  if (input.shape[1] > 4 || !operation.kernel.square() || !operation.basic() ||
      std::ranges::find(kernels, static_cast<int>(operation.kernel.height)) == kernels.end())
    return false;
  using Tag = dnnl::memory::format_tag;
  return has_layout(input, Tag::nchw) && has_layout(output, Tag::nChw8c) && has_layout(weights, Tag::Ohwi8o);
}

FirstConvolutionGradient::FirstConvolutionGradient(const Convolution& operation, const TensorSpec& input,
                                                   const TensorSpec& output)
    : kernel_(operation.kernel.height),
      stride_(operation.stride.height),
      padding_(operation.padding.top),
      batch_(input.shape[0]),
      channels_(input.shape[1]),
      height_(input.shape[2]),
      width_(input.shape[3]),
      padded_height_(height_ + 2 * padding_),
      padded_width_(width_ + 2 * padding_),
      blocks_((output.shape[1] + kBlock - 1) / kBlock),
      output_height_(output.shape[2]),
      output_width_(output.shape[3]),
      slice_((kernel_ * kernel_ * channels_ + 1) * kBlock) {}

void FirstConvolutionGradient::allocate() {
  const auto threads = static_cast<std::size_t>(omp_get_max_threads());
  partial_.assign(threads, std::vector<float>(blocks_ * slice_));
  padded_.assign(threads, std::vector<float>(channels_ * padded_height_ * padded_width_));
}

void FirstConvolutionGradient::pad(const float* image, float* padded) const {
  for (std::size_t c = 0; c < channels_; ++c)
    for (std::size_t y = 0; y < height_; ++y)
      std::copy_n(image + (c * height_ + y) * width_, width_,
                  padded + (c * padded_height_ + y + padding_) * padded_width_ + padding_);
}

template <int kernel>
void FirstConvolutionGradient::run_kernel(const float* input, const float* output_gradient) {
  const Planes planes{{output_height_, output_width_}, padded_width_, stride_};
  const std::size_t plane = output_height_ * output_width_ * kBlock;
#pragma omp parallel num_threads(static_cast <int>(partial_.size()))
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    float* const sums = partial_[thread].data();
    float* const padded = padded_[thread].data();
    std::fill_n(sums, blocks_ * slice_, 0.0f);
#pragma omp for schedule(static)
    for (std::size_t image = 0; image < batch_; ++image) {
      pad(input + image * channels_ * height_ * width_, padded);
      for (std::size_t block = 0; block < blocks_; ++block) {
        const float* gradient = output_gradient + (image * blocks_ + block) * plane;
        float* const weights = sums + block * slice_;
        const std::size_t tap = channels_ * kBlock;  // Ohwi8o: kernel row, kernel column, input channel, output channel
        for (std::size_t c = 0; c < channels_; ++c) {
          int row = 0;
          const auto from = [&] {
            return padded + (c * padded_height_ + static_cast<std::size_t>(row)) * padded_width_;
          };
          const auto to = [&] { return weights + static_cast<std::size_t>(row * kernel) * tap + c * kBlock; };
          constexpr int rows = rows_together(kernel);
          for (; row + rows <= kernel; row += rows) accumulate<kernel, rows>(from(), gradient, planes, tap, to());
          for (; row < kernel; ++row) accumulate<kernel, 1>(from(), gradient, planes, tap, to());
        }
        Vector bias{};
        for (std::size_t i = 0; i < plane; i += kBlock) bias += load<Vector>(gradient + i);
        add_to(weights + kernel * kernel * tap, bias);
      }
    }
  }
}

void FirstConvolutionGradient::run(const float* input, const float* output_gradient, std::span<float> weights,
                                   std::span<float> bias) {
  switch (kernel_) {
    case 1:
      run_kernel<1>(input, output_gradient);
      break;
    case 3:
      run_kernel<3>(input, output_gradient);
      break;
    case 5:
      run_kernel<5>(input, output_gradient);
      break;
    case 7:
      run_kernel<7>(input, output_gradient);
      break;
    default:
      run_kernel<11>(input, output_gradient);
  }
  // In the threads' order, so that the same threads give the same bits.
  for (std::size_t thread = 1; thread < partial_.size(); ++thread)
    for (std::size_t i = 0; i < partial_[0].size(); ++i) partial_[0][i] += partial_[thread][i];
  const std::size_t size = slice_ - kBlock;
  for (std::size_t block = 0; block < blocks_; ++block) {
    const float* from = partial_[0].data() + block * slice_;
    std::copy_n(from, size, weights.data() + block * size);
    if (!bias.empty())
      std::copy_n(from + size, std::min(kBlock, bias.size() - block * kBlock), bias.data() + block * kBlock);
  }
}

}  // namespace annulus::cpu
