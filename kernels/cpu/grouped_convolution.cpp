#include "kernels/cpu/depthwise_convolution.h"

#include <algorithm>
#include <limits>

#include "kernels/base/split.h"
#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/vectors.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kChannelBlock;
constexpr std::size_t kRun = 8;             // neighbouring outputs whose sums are in registers
constexpr std::size_t kImagesTogether = 4;  // images whose weights' gradients are added up before others'

using Vector = Lanes<kBlock>::Floats;

// The sums of `run` neighbouring outputs over some taps of a row: taps' weights are `weights`, and the pixels that the
// first output reads begin at `from` + offsets.
template <std::size_t run, class Tap>
[[gnu::always_inline]] inline void add_taps(const std::vector<Tap>& taps, const float* from, std::size_t step,
                                            const float* weights, Vector (&sums)[run]) {
  for (const Tap& tap : taps) {
    const auto weight = load<Vector>(weights + tap.weight * kBlock);
    const float* pixel = from + tap.offset * static_cast<std::ptrdiff_t>(kBlock);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < run; ++i) sums[i] += weight * load<Vector>(pixel + i * step * kBlock);
  }
}

}  // namespace

std::size_t DepthwiseConvolution::Images::floats() const {
  return height * width * kBlock;
}

bool DepthwiseConvolution::supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                                    const TensorSpec& weights) {
  if (operation.groups != input.shape[1] || operation.channels != operation.groups || operation.groups == 1)
    return false;
  using Tag = dnnl::memory::format_tag;
  constexpr Tag kImages = kBlock == 8 ? Tag::nChw8c : Tag::nChw16c;
  constexpr Tag kWeights = kBlock == 8 ? Tag::Goihw8g : Tag::Goihw16g;
  return has_layout(input, kImages) && has_layout(output, kImages) && has_layout(weights, kWeights);
}

// Finds the outputs all of whose taps exist.
DepthwiseConvolution::Line DepthwiseConvolution::line(Line line, std::size_t pixels) {
  const auto exist = [&](std::size_t output) {
    return std::ranges::all_of(line.taps, [&](const Tap& tap) {
      const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(output * line.from_step) + tap.offset;
      return pixel >= 0 && pixel < static_cast<std::ptrdiff_t>(pixels);
    });
  };
  std::size_t begin = 0;
  while (begin < line.count && !exist(begin)) ++begin;
  std::size_t end = begin;
  while (end < line.count && exist(end)) ++end;
  line.inside = {begin, end};
  return line;
}

namespace {

struct Axis {
  std::ptrdiff_t kernel, stride, padding, dilation;
};

Axis axis_of(const Convolution& o, bool rows) {
  const auto number = [](std::size_t size) { return static_cast<std::ptrdiff_t>(size); };
  if (rows) return {number(o.kernel.height), number(o.stride.height), number(o.padding.top), number(o.dilation.height)};
  return {number(o.kernel.width), number(o.stride.width), number(o.padding.left), number(o.dilation.width)};
}

}  // namespace

std::vector<DepthwiseConvolution::Line> DepthwiseConvolution::forward_lines(const Convolution& operation, bool rows,
                                                                            std::size_t pixels, std::size_t outputs) {
  const Axis axis = axis_of(operation, rows);
  Line all{0, 1, outputs, static_cast<std::size_t>(axis.stride), {}, {}};
  for (std::ptrdiff_t k = 0; k < axis.kernel; ++k)
    all.taps.push_back({k * axis.dilation - axis.padding, static_cast<std::size_t>(k)});
  return {line(std::move(all), pixels)};
}

// Pixel r + j stride of the input is tap k of output j + (r + padding - k dilation) / stride, if that is whole.
std::vector<DepthwiseConvolution::Line> DepthwiseConvolution::backward_lines(const Convolution& operation, bool rows,
                                                                             std::size_t pixels, std::size_t outputs) {
  const Axis axis = axis_of(operation, rows);
  std::vector<Line> lines;
  for (std::ptrdiff_t r = 0; r < axis.stride && r < static_cast<std::ptrdiff_t>(pixels); ++r) {
    const std::size_t first = static_cast<std::size_t>(r), step = static_cast<std::size_t>(axis.stride);
    Line every{first, step, (pixels - first + step - 1) / step, 1, {}, {}};
    for (std::ptrdiff_t k = 0; k < axis.kernel; ++k) {
      const std::ptrdiff_t distance = r + axis.padding - k * axis.dilation;
      if (distance % axis.stride == 0) every.taps.push_back({distance / axis.stride, static_cast<std::size_t>(k)});
    }
    lines.push_back(line(std::move(every), outputs));
  }
  return lines;
}

DepthwiseConvolution::DepthwiseConvolution(const Convolution& operation, const TensorSpec& input,
                                           const TensorSpec& output)
    : kernel_(operation.kernel),
      batch_(input.shape[0]),
      channels_(input.shape[1]),
      blocks_((input.shape[1] + kBlock - 1) / kBlock),
      input_{input.shape[2], input.shape[3]},
      output_{output.shape[2], output.shape[3]},
      forward_rows_(forward_lines(operation, true, input_.height, output_.height)),
      forward_columns_(forward_lines(operation, false, input_.width, output_.width)),
      backward_rows_(backward_lines(operation, true, input_.height, output_.height)),
      backward_columns_(backward_lines(operation, false, input_.width, output_.width)) {}

std::size_t DepthwiseConvolution::scratch_bytes(Mode mode) const {
  const std::size_t groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  return mode == Mode::inference ? 0 : groups * blocks_ * (kernel_.area() + 1) * kBlock * sizeof(float);
}

void DepthwiseConvolution::correlate(const std::vector<Line>& rows, const std::vector<Line>& columns,
                                     const Images& source, const Images& target, const float* from,
                                     const float* weights, const float* bias, bool relu, float* to) const {
  const Vector least = Vector{} + (relu ? 0.0f : -std::numeric_limits<float>::infinity());
  const auto first = bias != nullptr ? load<Vector>(bias) : Vector{};
  // A row of the source and the weights of the window's row that is applied to it.
  struct Row {
    const float *pixels, *weights;
  };
  std::vector<Row> sources(kernel_.height);
  for (const Line& down : rows)
    for (std::size_t i = 0; i < down.count; ++i) {
      std::size_t count = 0;
      for (const Tap& tap : down.taps) {
        const std::ptrdiff_t y = static_cast<std::ptrdiff_t>(i * down.from_step) + tap.offset;
        if (y >= 0 && y < static_cast<std::ptrdiff_t>(source.height))
          sources[count++] = {from + static_cast<std::size_t>(y) * source.width * kBlock,
                              weights + tap.weight * kernel_.width * kBlock};
      }
      float* const row = to + (down.first + i * down.to_step) * target.width * kBlock;
      const auto put = [&](const Vector& sum, const Line& across, std::size_t j) {
        store(sum < least ? least : sum, row + (across.first + j * across.to_step) * kBlock);  // NaN stays
      };
      for (const Line& across : columns) {
        const auto outside = [&](std::size_t j) {
          Vector sum = first;
          for (std::size_t k = 0; k < count; ++k)
            for (const Tap& tap : across.taps) {
              const std::ptrdiff_t x = static_cast<std::ptrdiff_t>(j * across.from_step) + tap.offset;
              if (x >= 0 && x < static_cast<std::ptrdiff_t>(source.width))
                sum += load<Vector>(sources[k].weights + tap.weight * kBlock) *
                       load<Vector>(sources[k].pixels + static_cast<std::size_t>(x) * kBlock);
            }
          put(sum, across, j);
        };
        for (std::size_t j = 0; j < across.inside.begin; ++j) outside(j);
        std::size_t j = across.inside.begin;
        for (; j + kRun <= across.inside.end; j += kRun) {
          Vector sums[kRun];
#pragma GCC unroll 8
          for (Vector& sum : sums) sum = first;
          for (std::size_t k = 0; k < count; ++k)
            add_taps(across.taps, sources[k].pixels + j * across.from_step * kBlock, across.from_step,
                     sources[k].weights, sums);
#pragma GCC unroll 8
          for (std::size_t u = 0; u < kRun; ++u) put(sums[u], across, j + u);
        }
        for (; j < across.inside.end; ++j) {
          Vector sums[1] = {first};
          for (std::size_t k = 0; k < count; ++k)
            add_taps(across.taps, sources[k].pixels + j * across.from_step * kBlock, across.from_step,
                     sources[k].weights, sums);
          put(sums[0], across, j);
        }
        for (; j < across.count; ++j) outside(j);
      }
    }
}

void DepthwiseConvolution::forward(std::span<const float> input, std::span<const float> weights,
                                   std::span<const float> bias, bool relu, std::span<float> output, DeviceView) const {
#pragma omp parallel for schedule(static)
  for (std::size_t plane = 0; plane < batch_ * blocks_; ++plane) {
    const std::size_t block = plane % blocks_;
    float own_bias[kBlock] = {};
    for (std::size_t i = 0; i < kBlock && block * kBlock + i < bias.size(); ++i) own_bias[i] = bias[block * kBlock + i];
    correlate(forward_rows_, forward_columns_, input_, output_, input.data() + plane * input_.floats(),
              weights.data() + block * kernel_.area() * kBlock, bias.empty() ? nullptr : own_bias, relu,
              output.data() + plane * output_.floats());
  }
}

void DepthwiseConvolution::backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                                         std::span<float> input_gradient, DeviceView) const {
#pragma omp parallel for schedule(static)
  for (std::size_t plane = 0; plane < batch_ * blocks_; ++plane)
    correlate(backward_rows_, backward_columns_, output_, input_, output_gradient.data() + plane * output_.floats(),
              weights.data() + plane % blocks_ * kernel_.area() * kBlock, nullptr, false,
              input_gradient.data() + plane * input_.floats());
}

// Adds the products of one row of an image with one of the output's gradient, for `count` taps at a time.
namespace {

template <std::size_t count>
[[gnu::always_inline]] inline void add_products(const float* const* pixels, std::size_t step, const float* gradient,
                                                std::size_t outputs, float* sums) {
  Vector taps[count] = {};
  for (std::size_t j = 0; j < outputs; ++j) {
    const auto g = load<Vector>(gradient + j * kBlock);
#pragma GCC unroll 8
    for (std::size_t k = 0; k < count; ++k) taps[k] += g * load<Vector>(pixels[k] + j * step * kBlock);
  }
#pragma GCC unroll 8
  for (std::size_t k = 0; k < count; ++k) store(load<Vector>(sums + k * kBlock) + taps[k], sums + k * kBlock);
}

}  // namespace

void DepthwiseConvolution::add_weight_gradient(const float* image, const float* gradient, float* sums) const {
  const Line &down = forward_rows_[0], &across = forward_columns_[0];
  const auto width = static_cast<std::ptrdiff_t>(input_.width);
  for (std::size_t i = 0; i < down.count; ++i) {
    const float* const row_gradient = gradient + i * output_.width * kBlock;
    for (const Tap& row : down.taps) {
      const std::ptrdiff_t y = static_cast<std::ptrdiff_t>(i * down.from_step) + row.offset;
      if (y < 0 || y >= static_cast<std::ptrdiff_t>(input_.height)) continue;
      const float* const pixels = image + static_cast<std::size_t>(y) * input_.width * kBlock;
      float* const to = sums + row.weight * kernel_.width * kBlock;
      const auto outside = [&](std::size_t j) {
        for (const Tap& tap : across.taps) {
          const std::ptrdiff_t x = static_cast<std::ptrdiff_t>(j * across.from_step) + tap.offset;
          if (x < 0 || x >= width) continue;
          float* const sum = to + tap.weight * kBlock;
          store(load<Vector>(sum) + load<Vector>(pixels + static_cast<std::size_t>(x) * kBlock) *
                                        load<Vector>(row_gradient + j * kBlock),
                sum);
        }
      };
      for (std::size_t j = 0; j < across.inside.begin; ++j) outside(j);
      const auto run = [&](std::size_t k, auto count) {
        constexpr std::size_t kCount = decltype(count)::value;
        const float* first[kCount];
        for (std::size_t t = 0; t < kCount; ++t)
          first[t] = pixels +
                     (static_cast<std::ptrdiff_t>(across.inside.begin * across.from_step) + across.taps[k + t].offset) *
                         static_cast<std::ptrdiff_t>(kBlock);
        add_products<kCount>(first, across.from_step, row_gradient + across.inside.begin * kBlock, across.inside.size(),
                             to + k * kBlock);
      };
      std::size_t k = 0;
      for (; k + 7 <= kernel_.width; k += 7) run(k, std::integral_constant<std::size_t, 7>{});
      for (; k + 5 <= kernel_.width; k += 5) run(k, std::integral_constant<std::size_t, 5>{});
      for (; k + 3 <= kernel_.width; k += 3) run(k, std::integral_constant<std::size_t, 3>{});
      for (; k < kernel_.width; ++k) run(k, std::integral_constant<std::size_t, 1>{});
      for (std::size_t j = across.inside.end; j < across.count; ++j) outside(j);
    }
  }
}

void DepthwiseConvolution::backward_weights(std::span<const float> input, std::span<const float> output_gradient,
                                            std::span<float> weights, std::span<float> bias, DeviceView scratch) const {
  const std::size_t slice = (kernel_.area() + 1) * kBlock, groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  float* const sums = floats(scratch).data();
#pragma omp parallel for collapse(2) schedule(static)
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t block = 0; block < blocks_; ++block) {
      float* const own = sums + (group * blocks_ + block) * slice;
      std::fill_n(own, slice, 0.0f);
      for (std::size_t n = group * kImagesTogether; n < std::min(batch_, (group + 1) * kImagesTogether); ++n) {
        const float* const gradient = output_gradient.data() + (n * blocks_ + block) * output_.floats();
        add_weight_gradient(input.data() + (n * blocks_ + block) * input_.floats(), gradient, own);
        if (bias.empty()) continue;
        Vector sum{};
        for (std::size_t i = 0; i < output_.floats(); i += kBlock) sum += load<Vector>(gradient + i);
        store(load<Vector>(own + slice - kBlock) + sum, own + slice - kBlock);
      }
    }
#pragma omp parallel for schedule(static)
  for (std::size_t block = 0; block < blocks_; ++block) {
    float* const total = sums + block * slice;
    for (std::size_t group = 1; group < groups; ++group)
      for (std::size_t i = 0; i < slice; i += kBlock)
        store(load<Vector>(total + i) + load<Vector>(sums + (group * blocks_ + block) * slice + i), total + i);
    std::copy_n(total, slice - kBlock, weights.data() + block * (slice - kBlock));
    if (!bias.empty())
      std::copy_n(total + slice - kBlock, std::min(kBlock, bias.size() - block * kBlock), bias.data() + block * kBlock);
  }
}

}  // namespace annulus::cpu
