#include "kernels/cpu/convolution/grouped_convolution.h"

#include <omp.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/split.h"
#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kChannelBlock;
constexpr std::size_t kRun = 8;             // neighbouring outputs with sums in registers
constexpr std::size_t kImagesTogether = 4;  // images with weight gradients summed up first

using Vector = Lanes<kBlock>::Floats;
using dnnl::memory;

// Calls body(i) for each i < count, as constants.
template <std::size_t count, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (body(std::integral_constant<std::size_t, i>{}), ...);
  }
  (std::make_index_sequence<count>{});
}

// Returns the value of each group's channel `member`, in all lanes of the group.
template <std::size_t width, std::size_t member>
[[gnu::always_inline]] inline Vector of_groups(const Vector& values) {
  if constexpr (width == 1)
    return values;
  else
    return [&]<std::size_t... lane>(std::index_sequence<lane...>) {
      return __builtin_shufflevector(values, values, (lane / width * width + member)...);
    }
  (std::make_index_sequence<kBlock>{});
}

// Adds a tap to the sums of `run` neighbouring outputs; the first output reads `pixel`.
template <std::size_t width, std::size_t run>
[[gnu::always_inline]] inline void add_tap(const float* pixel, std::size_t step, const float* weights,
                                           Vector (&sums)[run]) {
  Vector weight[width];
  unrolled<width>([&](auto i) { weight[i] = load<Vector>(weights + i * kBlock); });
#pragma GCC unroll 8
  for (std::size_t u = 0; u < run; ++u) {
    const auto values = load<Vector>(pixel + u * step * kBlock);
    unrolled<width>([&](auto i) { sums[u] += weight[i] * of_groups<width, i>(values); });
  }
}

// Sums up `run` neighbouring outputs over some taps in a row: taps' weights are `weights`, and the pixels that the
// first output reads begin at `from` + offsets.
template <std::size_t width, std::size_t run, class Tap>
[[gnu::always_inline]] inline void add_taps(const std::vector<Tap>& taps, const float* from, std::size_t step,
                                            const float* weights, Vector (&sums)[run]) {
  for (const Tap& tap : taps)
    add_tap<width>(from + tap.offset * static_cast<std::ptrdiff_t>(kBlock), step, weights + tap.weight * width * kBlock,
                   sums);
}

// Calls body(width as a constant).
template <class Body>
void with_width(std::size_t width, const Body& body) {
  switch (width) {
    case 1:
      return body(std::integral_constant<std::size_t, 1>{});
    case 2:
      return body(std::integral_constant<std::size_t, 2>{});
    case 4:
      return body(std::integral_constant<std::size_t, 4>{});
    default:
      return body(std::integral_constant<std::size_t, 8>{});
  }
}

// {blocks, window, channels in a group, lanes}: a block's lanes are the outputs' lanes.
memory::desc weights_layout(const Convolution& operation, std::size_t width) {
  const auto dim = [](std::size_t size) { return static_cast<memory::dim>(size); };
  const auto [height, columns] = operation.kernel;
  const memory::dims dims{dim(operation.groups), dim(width), dim(width), dim(height), dim(columns)};
  if (width == 1)
    return {dims, memory::data_type::f32, kBlock == 8 ? memory::format_tag::Goihw8g : memory::format_tag::Goihw16g};
  memory::desc layout(dims, memory::data_type::f32, memory::format_tag::goihw);
  auto& blocking = layout.data.format_desc.blocking;
  const std::size_t pixel = width * kBlock, block = height * columns * pixel;
  const std::size_t strides[]{block, block, kBlock, columns * pixel, pixel};
  std::ranges::transform(strides, blocking.strides, dim);
  blocking.inner_nblks = 2;
  blocking.inner_blks[0] = dim(kBlock / width);
  blocking.inner_idxs[0] = 0;
  blocking.inner_blks[1] = dim(width);
  blocking.inner_idxs[1] = 1;
  return layout;
}

}  // namespace

std::size_t GroupedConvolution::Images::floats() const {
  return height * width * kBlock;
}

bool GroupedConvolution::supports(const Convolution& operation, const TensorSpec& input,
                                  const std::vector<TensorSpec>& fixed) {
  const std::size_t channels = input.shape[1], width = channels / operation.groups;
  if (operation.groups == 1 || operation.channels != channels) return false;
  const bool full = channels % kBlock == 0;
  if (width != 1 && !(full && width < kBlock && kBlock % width == 0)) return false;
  if (!fixed.empty() && desc(fixed[0]) != weights_layout(operation, width)) return false;
  using Tag = memory::format_tag;
  return has_layout(input, kBlock == 8 ? Tag::nChw8c : Tag::nChw16c) || (full && has_layout(input, Tag::nhwc));
}

TensorSpec GroupedConvolution::output(const Convolution& operation, const TensorSpec& input) {
  const Shape shape = operation.output_shape({input.shape});
  return spec(shape, layout_like(input, shape));
}

std::vector<TensorSpec> GroupedConvolution::parameters(const Convolution& operation, const TensorSpec& input) {
  const auto declared = operation.parameters({input.shape});
  std::vector<TensorSpec> specs{spec(declared[0].shape, weights_layout(operation, input.shape[1] / operation.groups))};
  if (operation.bias) specs.push_back(spec(declared[1].shape, plain_layout(declared[1].shape)));
  return specs;
}

// Finds the outputs for which all taps exist.
GroupedConvolution::Line GroupedConvolution::line(Line line, std::size_t pixels) {
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

std::vector<GroupedConvolution::Line> GroupedConvolution::forward_lines(const Convolution& operation, bool rows,
                                                                        std::size_t pixels, std::size_t outputs) {
  const Axis axis = axis_of(operation, rows);
  Line all{0, 1, outputs, static_cast<std::size_t>(axis.stride), {}, {}};
  for (std::ptrdiff_t k = 0; k < axis.kernel; ++k)
    all.taps.push_back({k * axis.dilation - axis.padding, static_cast<std::size_t>(k)});
  return {line(std::move(all), pixels)};
}

// The input's pixel r + j stride is tap k of output j + (r + padding - k dilation) / stride, if that is whole.
std::vector<GroupedConvolution::Line> GroupedConvolution::backward_lines(const Convolution& operation, bool rows,
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

GroupedConvolution::GroupedConvolution(const Convolution& operation, const TensorSpec& input, const TensorSpec& output)
    : kernel_(operation.kernel),
      width_(input.shape[1] / operation.groups),
      batch_(input.shape[0]),
      channels_(input.shape[1]),
      blocks_((input.shape[1] + kBlock - 1) / kBlock),
      channels_last_(has_layout(input, memory::format_tag::nhwc)),
      input_{input.shape[2], input.shape[3]},
      output_{output.shape[2], output.shape[3]},
      forward_rows_(forward_lines(operation, true, input_.height, output_.height)),
      forward_columns_(forward_lines(operation, false, input_.width, output_.width)),
      backward_rows_(backward_lines(operation, true, input_.height, output_.height)),
      backward_columns_(backward_lines(operation, false, input_.width, output_.width)),
      planes_floats_(
          channels_last_ ? static_cast<std::size_t>(omp_get_max_threads()) * (input_.floats() + output_.floats()) : 0) {
}

std::size_t GroupedConvolution::block_weights() const {
  return kernel_.area() * width_ * kBlock;
}

// First the threads' planes, then either the transposed weights or the sums of the weights' gradients.
std::size_t GroupedConvolution::scratch_bytes(Mode mode) const {
  const std::size_t groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  const std::size_t sums = mode == Mode::inference ? 0 : groups * blocks_ * (block_weights() + kBlock);
  return (planes_floats_ + sums) * sizeof(float);
}

float* GroupedConvolution::own_planes(DeviceView scratch) const {
  if (!channels_last_) return nullptr;
  const auto thread = static_cast<std::size_t>(omp_get_thread_num());
  return floats(scratch).data() + thread * (input_.floats() + output_.floats());
}

const float* GroupedConvolution::packed(const float* images, const Images& size, std::size_t plane, float* copy) const {
  if (!channels_last_) return images + plane * size.floats();
  const std::size_t pixels = size.height * size.width;
  const float* from = images + plane / blocks_ * pixels * channels_ + plane % blocks_ * kBlock;
  for (std::size_t i = 0; i < pixels; ++i) store(load<Vector>(from + i * channels_), copy + i * kBlock);
  return copy;
}

void GroupedConvolution::unpack(const float* copy, const Images& size, std::size_t plane, float* images) const {
  const std::size_t pixels = size.height * size.width;
  float* to = images + plane / blocks_ * pixels * channels_ + plane % blocks_ * kBlock;
  for (std::size_t i = 0; i < pixels; ++i) store(load<Vector>(copy + i * kBlock), to + i * channels_);
}

template <std::size_t width>
void GroupedConvolution::correlate(const Correlation& correlation, const float* from, const float* weights,
                                   const float* bias, bool relu, float* to) const {
  const auto& [rows, columns, source, target] = correlation;
  const Vector least = Vector{} + (relu ? 0.0f : -std::numeric_limits<float>::infinity());
  const auto first = bias != nullptr ? load<Vector>(bias) : Vector{};
  // A source row and the weights in the window row that is applied to it.
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
                              weights + tap.weight * kernel_.width * width * kBlock};
      }
      float* const row = to + (down.first + i * down.to_step) * target.width * kBlock;
      const auto put = [&](const Vector& sum, const Line& across, std::size_t j) {
        store(sum < least ? least : sum, row + (across.first + j * across.to_step) * kBlock);  // NaN stays
      };
      for (const Line& across : columns) {
        const auto outside = [&](std::size_t j) {
          Vector sum[1] = {first};
          for (std::size_t k = 0; k < count; ++k)
            for (const Tap& tap : across.taps) {
              const std::ptrdiff_t x = static_cast<std::ptrdiff_t>(j * across.from_step) + tap.offset;
              if (x >= 0 && x < static_cast<std::ptrdiff_t>(source.width))
                add_tap<width>(sources[k].pixels + static_cast<std::size_t>(x) * kBlock, 1,
                               sources[k].weights + tap.weight * width * kBlock, sum);
            }
          put(sum[0], across, j);
        };
        for (std::size_t j = 0; j < across.inside.begin; ++j) outside(j);
        std::size_t j = across.inside.begin;
        for (; j + kRun <= across.inside.end; j += kRun) {
          Vector sums[kRun];
#pragma GCC unroll 8
          for (Vector& sum : sums) sum = first;
          for (std::size_t k = 0; k < count; ++k)
            add_taps<width>(across.taps, sources[k].pixels + j * across.from_step * kBlock, across.from_step,
                            sources[k].weights, sums);
#pragma GCC unroll 8
          for (std::size_t u = 0; u < kRun; ++u) put(sums[u], across, j + u);
        }
        for (; j < across.inside.end; ++j) {
          Vector sums[1] = {first};
          for (std::size_t k = 0; k < count; ++k)
            add_taps<width>(across.taps, sources[k].pixels + j * across.from_step * kBlock, across.from_step,
                            sources[k].weights, sums);
          put(sums[0], across, j);
        }
        for (; j < across.count; ++j) outside(j);
      }
    }
}

void GroupedConvolution::correlate_all(const Correlation& correlation, const float* from, const float* weights,
                                       std::span<const float> bias, bool relu, float* to, DeviceView scratch) const {
  const auto& [rows, columns, source, target] = correlation;
#pragma omp parallel for schedule(static)
  for (std::size_t plane = 0; plane < batch_ * blocks_; ++plane) {
    const std::size_t block = plane % blocks_;
    float own_bias[kBlock] = {};
    for (std::size_t i = 0; i < kBlock && block * kBlock + i < bias.size(); ++i) own_bias[i] = bias[block * kBlock + i];
    float* const copies = own_planes(scratch);
    const float* const read = packed(from, source, plane, copies);
    float* const written = channels_last_ ? copies + source.floats() : to + plane * target.floats();
    with_width(width_, [&](auto width) {
      correlate<width>(correlation, read, weights + block * block_weights(), bias.empty() ? nullptr : own_bias, relu,
                       written);
    });
    if (channels_last_) unpack(written, target, plane, to);
  }
}

void GroupedConvolution::forward(std::span<const float> input, std::span<const float> weights,
                                 std::span<const float> bias, bool relu, std::span<float> output,
                                 DeviceView scratch) const {
  correlate_all({forward_rows_, forward_columns_, input_, output_}, input.data(), weights.data(), bias, relu,
                output.data(), scratch);
}

// Returns the weights with the inputs' lanes.
const float* GroupedConvolution::transposed(std::span<const float> weights, DeviceView scratch) const {
  if (width_ == 1) return weights.data();
  float* const to = floats(scratch).data() + planes_floats_;
#pragma omp parallel for schedule(static)
  for (std::size_t tap = 0; tap < blocks_ * kernel_.area(); ++tap) {
    const std::size_t first = tap * width_ * kBlock;
    for (std::size_t i = 0; i < width_; ++i)
      for (std::size_t lane = 0; lane < kBlock; ++lane)
        to[first + lane % width_ * kBlock + lane / width_ * width_ + i] = weights[first + i * kBlock + lane];
  }
  return to;
}

void GroupedConvolution::backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                                       std::span<float> input_gradient, DeviceView scratch) const {
  correlate_all({backward_rows_, backward_columns_, output_, input_}, output_gradient.data(),
                transposed(weights, scratch), {}, false, input_gradient.data(), scratch);
}

// Adds the products of an image row with a row of the output's gradient, for `count` taps at a time.
namespace {

template <std::size_t width, std::size_t count>
[[gnu::always_inline]] inline void add_products(const float* const* pixels, std::size_t step, const float* gradient,
                                                std::size_t outputs, float* sums) {
  Vector taps[count][width] = {};
  for (std::size_t j = 0; j < outputs; ++j) {
    const auto g = load<Vector>(gradient + j * kBlock);
    unrolled<count>([&](auto k) {
      const auto values = load<Vector>(pixels[k] + j * step * kBlock);
      unrolled<width>([&](auto i) { taps[k][i] += g * of_groups<width, i>(values); });
    });
  }
  unrolled<count>([&](auto k) {
    unrolled<width>([&](auto i) {
      float* const sum = sums + (k * width + i) * kBlock;
      store(load<Vector>(sum) + taps[k][i], sum);
    });
  });
}

}  // namespace

template <std::size_t width>
void GroupedConvolution::add_weight_gradient(const float* image, const float* gradient, float* sums) const {
  const Line &down = forward_rows_[0], &across = forward_columns_[0];
  for (std::size_t i = 0; i < down.count; ++i) {
    const float* const row_gradient = gradient + i * output_.width * kBlock;
    for (const Tap& row : down.taps) {
      const std::ptrdiff_t y = static_cast<std::ptrdiff_t>(i * down.from_step) + row.offset;
      if (y < 0 || y >= static_cast<std::ptrdiff_t>(input_.height)) continue;
      const float* const pixels = image + static_cast<std::size_t>(y) * input_.width * kBlock;
      float* const to = sums + row.weight * kernel_.width * width * kBlock;
      const auto outside = [&](std::size_t j) {
        for (const Tap& tap : across.taps) {
          const std::ptrdiff_t x = static_cast<std::ptrdiff_t>(j * across.from_step) + tap.offset;
          if (x < 0 || x >= static_cast<std::ptrdiff_t>(input_.width)) continue;
          const float* const pixel = pixels + static_cast<std::size_t>(x) * kBlock;
          add_products<width, 1>(&pixel, 0, row_gradient + j * kBlock, 1, to + tap.weight * width * kBlock);
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
        add_products<width, kCount>(first, across.from_step, row_gradient + across.inside.begin * kBlock,
                                    across.inside.size(), to + k * width * kBlock);
      };
      std::size_t k = 0;
      if constexpr (width == 1) {  // more sums would not fit into the registers
        for (; k + 7 <= kernel_.width; k += 7) run(k, std::integral_constant<std::size_t, 7>{});
        for (; k + 5 <= kernel_.width; k += 5) run(k, std::integral_constant<std::size_t, 5>{});
      }
      for (; k + 3 <= kernel_.width; k += 3) run(k, std::integral_constant<std::size_t, 3>{});
      for (; k < kernel_.width; ++k) run(k, std::integral_constant<std::size_t, 1>{});
      for (std::size_t j = across.inside.end; j < across.count; ++j) outside(j);
    }
  }
}

void GroupedConvolution::backward_weights(std::span<const float> input, std::span<const float> output_gradient,
                                          std::span<float> weights, std::span<float> bias, DeviceView scratch) const {
  const std::size_t slice = block_weights() + kBlock, groups = (batch_ + kImagesTogether - 1) / kImagesTogether;
  float* const sums = floats(scratch).data() + planes_floats_;
#pragma omp parallel for collapse(2) schedule(static)
  for (std::size_t group = 0; group < groups; ++group)
    for (std::size_t block = 0; block < blocks_; ++block) {
      float* const own = sums + (group * blocks_ + block) * slice;
      std::fill_n(own, slice, 0.0f);
      float* const copies = own_planes(scratch);
      for (std::size_t n = group * kImagesTogether; n < std::min(batch_, (group + 1) * kImagesTogether); ++n) {
        const float* const image = packed(input.data(), input_, n * blocks_ + block, copies);
        const float* const gradient =
            packed(output_gradient.data(), output_, n * blocks_ + block, copies + input_.floats());
        with_width(width_, [&](auto width) { add_weight_gradient<width>(image, gradient, own); });
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
