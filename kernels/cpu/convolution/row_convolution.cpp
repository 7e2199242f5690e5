#include "kernels/cpu/convolution/row_convolution.h"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kChannelBlock;
using Vector = Lanes<kBlock>::Floats;

constexpr std::size_t kWindow = 5;          // rows and columns
constexpr std::size_t kRun = 10;            // outputs with sums that fit into registers beside a window row's weights
constexpr std::size_t kImagesTogether = 4;  // in a group with weight gradients summed up first
constexpr std::size_t kMostPlainChannels = 4;
constexpr std::size_t kWeightBlock = kBlock * kBlock;  // a tap's weights between two blocks of channels

// Adds the products of a window row with kRun + kWindow - 1 pixels to a run of outputs.
template <std::size_t pixel>
[[gnu::always_inline]] inline void add_row(const float* image, const float* weights, std::size_t tap,
                                           Vector (&sums)[kRun]) {
  Vector taps[kWindow];
#pragma GCC unroll 5
  for (std::size_t k = 0; k < kWindow; ++k) taps[k] = load<Vector>(weights + k * tap);
#pragma GCC unroll 14
  for (std::size_t i = 0; i < kRun + kWindow - 1; ++i)
#pragma GCC unroll 5
    for (std::size_t k = 0; k < kWindow; ++k)
      if (k <= i && i - k < kRun) sums[i - k] += taps[k] * image[i * pixel];
}

// Adds what a run of outputs' gradients, in all `blocks` blocks of channels, contributes to a row of the input's
// gradient. `weights` are a window row: {output channels, kWindow, channels in a block}.
template <std::size_t run>
void scatter_row(const float* gradient, std::size_t block_stride, std::size_t blocks, const float* weights,
                 float* row) {
  Vector sums[run + kWindow - 1];
#pragma GCC unroll 14
  for (std::size_t i = 0; i < run + kWindow - 1; ++i) sums[i] = load<Vector>(row + i * kBlock);
  for (std::size_t block = 0; block < blocks; ++block, gradient += block_stride)
    for (std::size_t channel = 0; channel < kBlock; ++channel, weights += kWindow * kBlock)
#pragma GCC unroll 10
      for (std::size_t i = 0; i < run; ++i)
#pragma GCC unroll 5
        for (std::size_t k = 0; k < kWindow; ++k)
          sums[i + k] += load<Vector>(weights + k * kBlock) * gradient[i * kBlock + channel];
#pragma GCC unroll 14
  for (std::size_t i = 0; i < run + kWindow - 1; ++i) store(sums[i], row + i * kBlock);
}

// {output blocks, rows, columns, input channels, output channels} -> {rows, output channels, columns, input channels}.
void turn_weights(const float* from, std::size_t blocks, std::size_t channels, float* to) {
  for (std::size_t row = 0; row < kWindow; ++row)
    for (std::size_t out = 0; out < blocks * kBlock; ++out)
      for (std::size_t column = 0; column < kWindow; ++column)
        for (std::size_t in = 0; in < kBlock; ++in) {
          const std::size_t tap = (out / kBlock * kWindow + row) * kWindow + column;
          *to++ = in < channels ? from[(tap * channels + in) * kBlock + out % kBlock] : 0;
        }
}

// Adds the sum over the pixels to `to`, for each channel in a block.
void add_pixels(const float* gradient, std::size_t pixels, float* to) {
  Vector sums[4] = {};
  std::size_t i = 0;
  for (; i + 4 <= pixels; i += 4)
#pragma GCC unroll 4
    for (std::size_t k = 0; k < 4; ++k) sums[k] += load<Vector>(gradient + (i + k) * kBlock);
  for (; i < pixels; ++i) sums[0] += load<Vector>(gradient + i * kBlock);
  store(load<Vector>(to) + ((sums[0] + sums[1]) + (sums[2] + sums[3])), to);
}

float* floats_at(DeviceView scratch) {
  return reinterpret_cast<float*>(scratch.address);
}

}  // namespace

bool RowConvolution::supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                              const TensorSpec& weights) {
  if (operation.kernel != Extent(kWindow) || !operation.basic() || operation.stride != 1 || output.shape[3] < kRun)
    return false;
  using Tag = dnnl::memory::format_tag;
  constexpr Tag kImages = kBlock == 8 ? Tag::nChw8c : Tag::nChw16c;
  constexpr Tag kWeights = kBlock == 8 ? Tag::Ohwi8o : Tag::Ohwi16o;
  if (!has_layout(output, kImages) || !has_layout(weights, kWeights)) return false;
  if (has_layout(input, Tag::nchw)) return input.shape[1] <= kMostPlainChannels && !operation.input_gradient;
  return input.shape[1] <= kBlock && has_layout(input, kImages);
}

RowConvolution::RowConvolution(const Convolution& operation, const TensorSpec& input, const TensorSpec& output)
    : threads_(static_cast<std::size_t>(omp_get_max_threads())),
      batch_(input.shape[0]),
      padding_(operation.padding.top),
      channels_(input.shape[1]),
      height_(input.shape[2]),
      width_(input.shape[3]),
      plain_(has_layout(input, dnnl::memory::format_tag::nchw)),
      padded_height_(height_ + 2 * padding_),
      padded_width_(width_ + 2 * padding_),
      blocks_((output.shape[1] + kBlock - 1) / kBlock),
      output_height_(output.shape[2]),
      output_width_(output.shape[3]) {}

std::size_t RowConvolution::input_floats() const {
  return height_ * width_ * (plain_ ? channels_ : kBlock);
}
std::size_t RowConvolution::output_floats() const {
  return blocks_ * output_height_ * output_width_ * kBlock;
}
std::size_t RowConvolution::padded_floats() const {
  return padded_height_ * padded_width_ * (plain_ ? channels_ : kBlock);
}
std::size_t RowConvolution::block_floats() const {
  return kWindow * kWindow * channels_ * kBlock;
}

std::size_t RowConvolution::scratch_bytes(Mode mode) const {
  const std::size_t images = threads_ * padded_floats();
  const std::size_t groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  const std::size_t rest =
      std::max(groups * blocks_ * (block_floats() + kBlock), blocks_ * kWindow * kWindow * kWeightBlock);
  return (images + (mode == Mode::inference ? 0 : rest)) * sizeof(float);
}

// Calls body(floats between neighbouring pixels in an image, as a constant).
template <class Body>
void RowConvolution::with_pixel(const Body& body) const {
  plain_ ? body(std::integral_constant<std::size_t, 1>{}) : body(std::integral_constant<std::size_t, kBlock>{});
}

// Returns the image bordered with zeros: a copy in `to`, or the image itself if there is no border.
const float* RowConvolution::padded(const float* image, float* to) const {
  if (padding_ == 0) return image;
  const std::size_t pixel = plain_ ? 1 : kBlock;
  std::fill_n(to, padded_floats(), 0.0f);
  for (std::size_t plane = 0; plane < (plain_ ? channels_ : 1); ++plane)
    for (std::size_t y = 0; y < height_; ++y)
      std::copy_n(image + (plane * height_ + y) * width_ * pixel, width_ * pixel,
                  to + ((plane * padded_height_ + y + padding_) * padded_width_ + padding_) * pixel);
  return to;
}

template <std::size_t pixel>
void RowConvolution::forward_image(const float* image, const float* weights, const float* bias, bool relu,
                                   float* output) const {
  const std::size_t row = padded_width_ * pixel, channel = pixel == 1 ? padded_height_ * row : 1;
  const std::size_t tap = channels_ * kBlock;
  const Vector least = Vector{} + (relu ? 0.0f : -std::numeric_limits<float>::infinity());
  for (std::size_t y = 0; y < output_height_; ++y)
    for (std::size_t begin = 0; begin < output_width_; begin += kRun) {
      const std::size_t x = std::min(begin, output_width_ - kRun);  // the last run may recompute some outputs
      Vector sums[kRun];
#pragma GCC unroll 10
      for (Vector& sum : sums) sum = load<Vector>(bias);
      for (std::size_t c = 0; c < channels_; ++c)
        for (std::size_t i = 0; i < kWindow; ++i)
          add_row<pixel>(image + c * channel + (y + i) * row + x * pixel, weights + i * kWindow * tap + c * kBlock, tap,
                         sums);
      float* const to = output + (y * output_width_ + x) * kBlock;
#pragma GCC unroll 10
      for (std::size_t i = 0; i < kRun; ++i) store(sums[i] < least ? least : sums[i], to + i * kBlock);  // NaN stays
    }
}

void RowConvolution::forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias,
                             bool relu, std::span<float> output, DeviceView scratch) const {
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads_))
  for (std::size_t n = 0; n < batch_; ++n) {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    const float* const image = padded(input.data() + n * input_floats(), floats_at(scratch) + thread * padded_floats());
    for (std::size_t block = 0; block < blocks_; ++block) {
      float own_bias[kBlock] = {};
      for (std::size_t i = 0; i < kBlock && block * kBlock + i < bias.size(); ++i)
        own_bias[i] = bias[block * kBlock + i];
      with_pixel([&](auto pixel) {
        forward_image<decltype(pixel)::value>(
            image, weights.data() + block * block_floats(), own_bias, relu,
            output.data() + n * output_floats() + block * output_height_ * output_width_ * kBlock);
      });
    }
  }
}

void RowConvolution::scatter_image(const float* gradient, const float* weights, float* padded) const {
  const std::size_t block_stride = output_height_ * output_width_ * kBlock;
  std::fill_n(padded, padded_floats(), 0.0f);
  for (std::size_t y = 0; y < output_height_; ++y)
    for (std::size_t i = 0; i < kWindow; ++i) {
      const float* const from = gradient + y * output_width_ * kBlock;
      const float* const window_row = weights + i * blocks_ * kBlock * kWindow * kBlock;
      float* const to = padded + (y + i) * padded_width_ * kBlock;
      std::size_t x = 0;
      for (; x + kRun <= output_width_; x += kRun)
        scatter_row<kRun>(from + x * kBlock, block_stride, blocks_, window_row, to + x * kBlock);
      for (; x < output_width_; ++x)
        scatter_row<1>(from + x * kBlock, block_stride, blocks_, window_row, to + x * kBlock);
    }
}

void RowConvolution::backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                                   std::span<float> input_gradient, DeviceView scratch) const {
  float* const images = floats_at(scratch);
  float* const turned = images + threads_ * padded_floats();
  turn_weights(weights.data(), blocks_, channels_, turned);
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads_))
  for (std::size_t n = 0; n < batch_; ++n) {
    float* const own = images + static_cast<std::size_t>(omp_get_thread_num()) * padded_floats();
    scatter_image(output_gradient.data() + n * output_floats(), turned, own);
    for (std::size_t y = 0; y < height_; ++y)
      std::copy_n(own + ((y + padding_) * padded_width_ + padding_) * kBlock, width_ * kBlock,
                  input_gradient.data() + n * input_floats() + y * width_ * kBlock);
  }
}

// Adds up the sums for some window rows, for an input channel and some output blocks. `image` is the padded image,
// beginning with the first of these rows.
template <std::size_t pixel, int blocks, int rows>
void RowConvolution::add_window_rows(const float* image, const float* gradient, float* sums) const {
  const std::size_t row = padded_width_ * pixel, tap = channels_ * kBlock;
  const std::size_t block_stride = output_height_ * output_width_ * kBlock, sums_stride = block_floats() + kBlock;
  constexpr int kColumns = static_cast<int>(kWindow);
  Vector taps[blocks][rows][kWindow] = {};
  for (std::size_t y = 0; y < output_height_; ++y)
    for (std::size_t x = 0; x < output_width_; ++x, gradient += kBlock) {
      const float* const from = image + y * row + x * pixel;
      Vector g[blocks];
#pragma GCC unroll 2
      for (int b = 0; b < blocks; ++b) g[b] = load<Vector>(gradient + b * block_stride);
#pragma GCC unroll 2
      for (int i = 0; i < rows; ++i)
#pragma GCC unroll 5
        for (int k = 0; k < kColumns; ++k)
#pragma GCC unroll 2
          for (int b = 0; b < blocks; ++b) taps[b][i][k] += g[b] * from[i * row + k * pixel];
    }
  for (int b = 0; b < blocks; ++b)
    for (int i = 0; i < rows; ++i)
      for (int k = 0; k < kColumns; ++k) {
        float* const to = sums + b * sums_stride + (i * kWindow + k) * tap;
        store(load<Vector>(to) + taps[b][i][k], to);
      }
}

template <std::size_t pixel>
void RowConvolution::add_weight_gradient(const float* image, const float* gradient, float* sums) const {
  const std::size_t row = padded_width_ * pixel, channel = pixel == 1 ? padded_height_ * row : 1;
  const std::size_t window_row = kWindow * channels_ * kBlock;
  const std::size_t pixels = output_height_ * output_width_, sums_stride = block_floats() + kBlock;
  std::size_t block = 0;
  for (; block + 2 <= blocks_; block += 2)
    for (std::size_t c = 0; c < channels_; ++c)
      for (std::size_t i = 0; i < kWindow; ++i)
        add_window_rows<pixel, 2, 1>(image + c * channel + i * row, gradient + block * pixels * kBlock,
                                     sums + block * sums_stride + i * window_row + c * kBlock);
  for (; block < blocks_; ++block)
    for (std::size_t c = 0; c < channels_; ++c) {
      const float* const from = image + c * channel;
      const float* const block_gradient = gradient + block * pixels * kBlock;
      float* const to = sums + block * sums_stride + c * kBlock;
      add_window_rows<pixel, 1, 2>(from, block_gradient, to);
      add_window_rows<pixel, 1, 2>(from + 2 * row, block_gradient, to + 2 * window_row);
      add_window_rows<pixel, 1, 1>(from + 4 * row, block_gradient, to + 4 * window_row);
    }
  for (block = 0; block < blocks_; ++block)
    add_pixels(gradient + block * pixels * kBlock, pixels, sums + block * sums_stride + block_floats());
}

void RowConvolution::backward_weights(std::span<const float> input, std::span<const float> output_gradient,
                                      std::span<float> weights, std::span<float> bias, DeviceView scratch) const {
  const std::size_t slice = block_floats() + kBlock, group_floats = blocks_ * slice;
  const std::size_t groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  float* const images = floats_at(scratch);
  float* const sums = images + threads_ * padded_floats();
#pragma omp parallel num_threads(static_cast <int>(threads_))
  {
    float* const own = images + static_cast<std::size_t>(omp_get_thread_num()) * padded_floats();
#pragma omp for schedule(static)
    for (std::size_t group = 0; group < groups; ++group) {
      std::fill_n(sums + group * group_floats, group_floats, 0.0f);
      for (std::size_t n = group * kImagesTogether; n < std::min(batch_, (group + 1) * kImagesTogether); ++n) {
        const float* const image = padded(input.data() + n * input_floats(), own);
        with_pixel([&](auto pixel) {
          add_weight_gradient<decltype(pixel)::value>(image, output_gradient.data() + n * output_floats(),
                                                      sums + group * group_floats);
        });
      }
    }
#pragma omp for schedule(static)
    for (std::size_t i = 0; i < group_floats; i += kBlock) {
      Vector sum = load<Vector>(sums + i);
      for (std::size_t group = 1; group < groups; ++group) sum += load<Vector>(sums + group * group_floats + i);
      store(sum, sums + i);
    }
  }
  for (std::size_t block = 0; block < blocks_; ++block) {
    const float* const from = sums + block * slice;
    std::copy_n(from, block_floats(), weights.data() + block * block_floats());
    if (!bias.empty())
      std::copy_n(from + block_floats(), std::min(kBlock, bias.size() - block * kBlock), bias.data() + block * kBlock);
  }
}

}  // namespace annulus::cpu
