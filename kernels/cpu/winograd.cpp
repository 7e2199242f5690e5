#include "kernels/cpu/winograd.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/dnnl_memory.h"
#include "kernels/cpu/vectors.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kChannelBlock;
using Vector = Lanes<kBlock>::Floats;

constexpr std::size_t kElements = 16;                   // of a transformed tile
constexpr std::size_t kTaps = 9;                        // of a window
constexpr std::size_t kWeightBlock = kBlock * kBlock;   // weights of one tap between two blocks of channels
constexpr std::size_t kTilesTogether = 6 * kBlock / 8;  // whose sums fit into registers, two vectors of each
constexpr std::size_t kCacheFloats = 48 * 1024;         // of transformed tiles that a thread works on at a time
constexpr std::size_t kTilesOfSum = 1024 / kBlock;      // that are read from the nearest cache

std::size_t rounded_up(std::size_t number, std::size_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// The formula's matrices, applied to a column.
constexpr auto kInputTransform = [](const Vector (&x)[4], Vector (&y)[4]) {  // B^T
  y[0] = x[0] - x[2];
  y[1] = x[1] + x[2];
  y[2] = x[2] - x[1];
  y[3] = x[1] - x[3];
};
constexpr auto kWeightTransform = [](const Vector (&x)[3], Vector (&y)[4]) {  // G
  const Vector ends = 0.5f * (x[0] + x[2]), middle = 0.5f * x[1];
  y[0] = x[0];
  y[1] = ends + middle;
  y[2] = ends - middle;
  y[3] = x[2];
};
constexpr auto kOutputTransform = [](const Vector (&x)[4], Vector (&y)[2]) {  // A^T
  y[0] = x[0] + x[1] + x[2];
  y[1] = x[1] - x[2] - x[3];
};
constexpr auto kOutputGradientTransform = [](const Vector (&x)[2], Vector (&y)[4]) {  // A
  y[0] = x[0];
  y[1] = x[0] + x[1];
  y[2] = x[0] - x[1];
  y[3] = -x[1];
};
constexpr auto kWeightGradientTransform = [](const Vector (&x)[4], Vector (&y)[3]) {  // G^T
  const Vector sum = 0.5f * (x[1] + x[2]);
  y[0] = x[0] + sum;
  y[1] = 0.5f * (x[1] - x[2]);
  y[2] = sum + x[3];
};

// T x T^T.
template <class Transform, std::size_t in, std::size_t out>
[[gnu::always_inline]] inline void apply(const Transform& transform, const Vector (&x)[in][in], Vector (&y)[out][out]) {
  Vector half[in][out];
#pragma GCC unroll 4
  for (std::size_t j = 0; j < in; ++j) {
    Vector column[in];
#pragma GCC unroll 4
    for (std::size_t i = 0; i < in; ++i) column[i] = x[i][j];
    transform(column, half[j]);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < out; ++i) {
    Vector row[in];
#pragma GCC unroll 4
    for (std::size_t j = 0; j < in; ++j) row[j] = half[j][i];
    transform(row, y[i]);
  }
}

// A matrix of vectors that lie `stride` floats apart, row by row.
template <std::size_t size>
[[gnu::always_inline]] inline void load_matrix(const float* from, std::size_t stride, Vector (&x)[size][size]) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < size * size; ++i, from += stride) x[i / size][i % size] = load<Vector>(from);
}

template <std::size_t size>
[[gnu::always_inline]] inline void store_matrix(const Vector (&x)[size][size], float* to, std::size_t stride) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < size * size; ++i, to += stride) store(x[i / size][i % size], to);
}

// A block of channels of an image.
struct Plane {
  std::size_t height, width;

  bool holds(std::ptrdiff_t y, std::ptrdiff_t x) const {
    return static_cast<std::size_t>(y) < height && static_cast<std::size_t>(x) < width;  // negative ones wrap
  }
  std::size_t floats() const { return height * width * kBlock; }
  std::ptrdiff_t at(std::ptrdiff_t y, std::ptrdiff_t x) const {
    return (y * static_cast<std::ptrdiff_t>(width) + x) * static_cast<std::ptrdiff_t>(kBlock);
  }

  // Calls body(i, j, offset of the pixel) for those of the size x size pixels from (y, x) on that lie within.
  template <std::ptrdiff_t size, class Body>
  [[gnu::always_inline]] void for_each_pixel(std::ptrdiff_t y, std::ptrdiff_t x, const Body& body) const {
    if (holds(y, x) && holds(y + size - 1, x + size - 1)) {
#pragma GCC unroll 4
      for (std::ptrdiff_t i = 0; i < size; ++i)
#pragma GCC unroll 4
        for (std::ptrdiff_t j = 0; j < size; ++j) body(i, j, at(y + i, x + j));
    } else {
#pragma GCC unroll 4
      for (std::ptrdiff_t i = 0; i < size; ++i)
#pragma GCC unroll 4
        for (std::ptrdiff_t j = 0; j < size; ++j)
          if (holds(y + i, x + j)) body(i, j, at(y + i, x + j));
    }
  }

  template <std::size_t size>
  [[gnu::always_inline]] void load_pixels(const float* plane, std::ptrdiff_t y, std::ptrdiff_t x,
                                          Vector (&pixels)[size][size]) const {
    for (auto& row : pixels)
      for (auto& pixel : row) pixel = Vector{};
    for_each_pixel<size>(y, x, [&](auto i, auto j, auto offset) { pixels[i][j] = load<Vector>(plane + offset); });
  }
};

// The tiles of a batch, numbered image by image and row by row.
struct Tiles {
  std::size_t rows, columns;

  Tiles(std::size_t height, std::size_t width) : rows((height + 1) / 2), columns((width + 1) / 2) {}
  std::size_t per_image() const { return rows * columns; }

  // Calls body(place among them, image, row and column of the tile's first output) for tiles [begin, end).
  template <class Body>
  void for_each(std::size_t begin, std::size_t end, const Body& body) const {
    std::size_t image = begin / per_image(), row = begin % per_image() / columns, column = begin % columns;
    for (std::size_t place = 0; place < end - begin; ++place) {
      body(place, image, static_cast<std::ptrdiff_t>(2 * row), static_cast<std::ptrdiff_t>(2 * column));
      if (++column < columns) continue;
      column = 0;
      if (++row < rows) continue;
      row = 0;
      ++image;
    }
  }
};

void transpose(const float* from, float* to) {
  for (std::size_t i = 0; i < kBlock; ++i)
    for (std::size_t j = 0; j < kBlock; ++j) to[j * kBlock + i] = from[i * kBlock + j];
}

// Sums over input channels: `tiles` lies as {input blocks, tiles, channels of a block}, the weights of each of the
// `vectors` output blocks as {input channels, channels of a block}; the sums of each as {tiles, channels of a block}.
template <int vectors>
void multiply_tiles(const float* tiles, std::size_t tiles_stride, const float* weights, std::size_t weights_stride,
                    std::size_t input_blocks, float* sums, std::size_t sums_stride) {
  Vector sum[kTilesTogether][vectors] = {};
  for (std::size_t block = 0; block < input_blocks; ++block, tiles += tiles_stride)
#pragma GCC unroll 4
    for (std::size_t channel = 0; channel < kBlock; ++channel, weights += kBlock) {
      Vector weight[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) weight[v] = load<Vector>(weights + v * weights_stride);
#pragma GCC unroll 12
      for (std::size_t tile = 0; tile < kTilesTogether; ++tile)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sum[tile][v] += weight[v] * tiles[tile * kBlock + channel];
    }
  for (std::size_t tile = 0; tile < kTilesTogether; ++tile)
    for (int v = 0; v < vectors; ++v) store(sum[tile][v], sums + v * sums_stride + tile * kBlock);
}

// Adds up, over `count` tiles, the products of half a block of input channels with `vectors` blocks of outputs'
// gradients: sums of each block as {input channels, channels of a block}.
template <int vectors>
void add_products(const float* tiles, const float* gradients, std::size_t gradients_stride, std::size_t count,
                  float* sums, std::size_t sums_stride) {
  constexpr std::size_t kChannels = kBlock / 2;
  Vector sum[kChannels][vectors];
  for (std::size_t channel = 0; channel < kChannels; ++channel)
    for (int v = 0; v < vectors; ++v) sum[channel][v] = load<Vector>(sums + v * sums_stride + channel * kBlock);
  for (std::size_t tile = 0; tile < count; ++tile) {
    Vector gradient[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) gradient[v] = load<Vector>(gradients + v * gradients_stride + tile * kBlock);
#pragma GCC unroll 8
    for (std::size_t channel = 0; channel < kChannels; ++channel)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[channel][v] += gradient[v] * tiles[tile * kBlock + channel];
  }
  for (std::size_t channel = 0; channel < kChannels; ++channel)
    for (int v = 0; v < vectors; ++v) store(sum[channel][v], sums + v * sums_stride + channel * kBlock);
}

float* take(DeviceView& scratch, std::size_t count) {
  float* const taken = reinterpret_cast<float*>(scratch.address);
  scratch = {scratch.address + count * sizeof(float), scratch.bytes - count * sizeof(float)};
  return taken;
}

// How the tiles of a batch are worked on.
struct Blocks {
  std::size_t count, tiles;  // at most so many in each
};

// About `floats` transformed values of `channel_blocks` for each tile; a multiple of `multiple` of blocks.
Blocks cut(std::size_t tiles, std::size_t channel_blocks, std::size_t floats, std::size_t multiple) {
  constexpr std::size_t kLeast = 36;  // fewer do not make up for reading all weights again
  const std::size_t wanted = std::max(floats / (kElements * kBlock * channel_blocks), kLeast);
  const std::size_t count = rounded_up((tiles + wanted - 1) / wanted, multiple);
  const std::size_t size = rounded_up((tiles + count - 1) / count, kTilesTogether);
  return {(tiles + size - 1) / size, size};
}

// Transforms the size x size pixels that belong to each of tiles [begin, end), to {elements, channel blocks, capacity,
// channels of a block}.
template <std::size_t size, class Transform>
void transform_tiles(const Transform& transform, const float* images, const Winograd::Images& shape,
                     std::size_t padding, const Tiles& tiles, std::size_t begin, std::size_t end, std::size_t capacity,
                     float* to) {
  const Plane plane{shape.height, shape.width};
  const auto border = static_cast<std::ptrdiff_t>(padding);
  tiles.for_each(begin, end, [&](std::size_t place, std::size_t image, std::ptrdiff_t y, std::ptrdiff_t x) {
    for (std::size_t block = 0; block < shape.blocks; ++block) {
      Vector pixels[size][size], elements[4][4];
      plane.load_pixels(images + (image * shape.blocks + block) * plane.floats(), y - border, x - border, pixels);
      apply(transform, pixels, elements);
      store_matrix(elements, to + (block * capacity + place) * kBlock, shape.blocks * capacity * kBlock);
    }
  });
}

// A convolution as forward() and backward_data() need it.
struct Pass {
  std::size_t batch, padding;
  Winograd::Images in, out;
  bool turned = false;  // the weights: by half a turn, and outputs for inputs
  const float* source = nullptr;
  const float* weights = nullptr;
  std::span<const float> bias{};
  bool relu = false;
  float* destination = nullptr;

  Tiles tiles() const { return {out.height, out.width}; }
  Blocks blocks(std::size_t threads) const {
    return cut(batch * tiles().per_image(), in.blocks + out.blocks, kCacheFloats, threads);
  }
  std::size_t weight_floats() const { return kElements * in.blocks * out.blocks * kWeightBlock; }
  std::size_t input_floats(std::size_t capacity) const { return kElements * in.blocks * capacity * kBlock; }
  std::size_t sum_floats(std::size_t capacity) const { return kElements * out.blocks * capacity * kBlock; }
  std::size_t scratch_bytes(std::size_t threads) const {
    const std::size_t capacity = blocks(threads).tiles;
    return (weight_floats() + threads * (input_floats(capacity) + sum_floats(capacity))) * sizeof(float);
  }
};

// The weights between two blocks of channels, to {elements, output blocks, input channels, channels of a block}.
void transform_weights(const Pass& pass, std::size_t out_block, std::size_t in_block, float* to) {
  const std::size_t in_channels = pass.in.blocks * kBlock;
  const std::size_t block =
      pass.turned ? in_block * pass.out.blocks + out_block : out_block * pass.in.blocks + in_block;
  const float* const from = pass.weights + block * kTaps * kWeightBlock;
  float taps[kTaps][kWeightBlock];
  for (std::size_t tap = 0; tap < kTaps; ++tap)
    if (pass.turned)
      transpose(from + (kTaps - 1 - tap) * kWeightBlock, taps[tap]);
    else
      std::copy_n(from + tap * kWeightBlock, kWeightBlock, taps[tap]);
  for (std::size_t channel = 0; channel < kBlock; ++channel) {
    Vector window[3][3], elements[4][4];
    load_matrix(taps[0] + channel * kBlock, kWeightBlock, window);
    apply(kWeightTransform, window, elements);
    store_matrix(elements, to + (out_block * in_channels + in_block * kBlock + channel) * kBlock,
                 pass.out.blocks * in_channels * kBlock);
  }
}

void multiply(const Pass& pass, const float* inputs, const float* weights, std::size_t count, std::size_t capacity,
              float* sums) {
  const std::size_t in_stride = capacity * kBlock, weight_stride = pass.in.blocks * kWeightBlock;
  for (std::size_t element = 0; element < kElements; ++element)
    for (std::size_t block = 0; block < pass.out.blocks; block += 2)
      for (std::size_t tile = 0; tile < count; tile += kTilesTogether) {
        const std::size_t place = element * pass.out.blocks + block;
        const float* const from = inputs + (element * pass.in.blocks * capacity + tile) * kBlock;
        float* const to = sums + (place * capacity + tile) * kBlock;
        if (block + 1 < pass.out.blocks)
          multiply_tiles<2>(from, in_stride, weights + place * weight_stride, weight_stride, pass.in.blocks, to,
                            in_stride);
        else
          multiply_tiles<1>(from, in_stride, weights + place * weight_stride, weight_stride, pass.in.blocks, to,
                            in_stride);
      }
}

void transform_sums(const Pass& pass, const float* sums, std::size_t begin, std::size_t end, std::size_t capacity) {
  const Plane plane{pass.out.height, pass.out.width};
  const Vector least = Vector{} + (pass.relu ? 0.0f : -std::numeric_limits<float>::infinity());
  pass.tiles().for_each(begin, end, [&](std::size_t place, std::size_t image, std::ptrdiff_t y, std::ptrdiff_t x) {
    for (std::size_t block = 0; block < pass.out.blocks; ++block) {
      Vector elements[4][4], pixels[2][2];
      load_matrix(sums + (block * capacity + place) * kBlock, pass.out.blocks * capacity * kBlock, elements);
      apply(kOutputTransform, elements, pixels);
      const Vector bias = pass.bias.empty() ? Vector{} : load<Vector>(pass.bias.data() + block * kBlock);
      float* const to = pass.destination + (image * pass.out.blocks + block) * plane.floats();
      plane.for_each_pixel<2>(y, x, [&](auto i, auto j, auto offset) {
        const Vector value = pixels[i][j] + bias;
        store(value < least ? least : value, to + offset);  // NaN stays
      });
    }
  });
}

// On `threads` threads.
void convolve(const Pass& pass, std::size_t threads, DeviceView scratch) {
  const std::size_t total = pass.batch * pass.tiles().per_image();
  const Blocks blocks = pass.blocks(threads);
  float* const weights = take(scratch, pass.weight_floats());
  float* const inputs = take(scratch, threads * pass.input_floats(blocks.tiles));
  float* const sums = take(scratch, threads * pass.sum_floats(blocks.tiles));
#pragma omp parallel num_threads(static_cast <int>(threads))
  {
    const auto thread = static_cast<std::size_t>(omp_get_thread_num());
    float* const own_inputs = inputs + thread * pass.input_floats(blocks.tiles);
    float* const own_sums = sums + thread * pass.sum_floats(blocks.tiles);
#pragma omp for schedule(static) collapse(2)
    for (std::size_t out = 0; out < pass.out.blocks; ++out)
      for (std::size_t in = 0; in < pass.in.blocks; ++in) transform_weights(pass, out, in, weights);
#pragma omp for schedule(static)
    for (std::size_t block = 0; block < blocks.count; ++block) {
      const std::size_t begin = block * blocks.tiles, end = std::min(begin + blocks.tiles, total);
      transform_tiles<4>(kInputTransform, pass.source, pass.in, pass.padding, pass.tiles(), begin, end, blocks.tiles,
                         own_inputs);
      multiply(pass, own_inputs, weights, end - begin, blocks.tiles, own_sums);
      transform_sums(pass, own_sums, begin, end, blocks.tiles);
    }
  }
}

// The weights' gradient.
struct GradientPass {
  std::size_t threads, batch, padding;
  Winograd::Images in, out;

  Tiles tiles() const { return {out.height, out.width}; }
  Blocks blocks() const {
    return cut(batch * tiles().per_image(), in.blocks + out.blocks, std::max(threads * kCacheFloats, sum_floats()), 1);
  }
  std::size_t sum_floats() const { return kElements * in.blocks * out.blocks * kWeightBlock; }
  std::size_t tile_floats(const Winograd::Images& images) const {
    return kElements * images.blocks * blocks().tiles * kBlock;
  }
  std::size_t scratch_bytes() const { return (sum_floats() + tile_floats(in) + tile_floats(out)) * sizeof(float); }
};

// Adds up the products of one block of input channels and some of output channels, for one element.
void add_products(const float* inputs, const float* gradients, std::size_t stride, std::size_t out_blocks,
                  std::size_t count, float* sums, std::size_t sums_stride) {
  for (std::size_t tile = 0; tile < count; tile += kTilesOfSum)
    for (std::size_t channel = 0; channel < kBlock; channel += kBlock / 2) {
      const auto add = [&]<int vectors>(std::integral_constant<int, vectors>) {
        add_products<vectors>(inputs + tile * kBlock + channel, gradients + tile * kBlock, stride,
                              std::min(kTilesOfSum, count - tile), sums + channel * kBlock, sums_stride);
      };
      if (out_blocks == 3)
        add(std::integral_constant<int, 3>{});
      else if (out_blocks == 2)
        add(std::integral_constant<int, 2>{});
      else
        add(std::integral_constant<int, 1>{});
    }
}

// The gradient of the weights between two blocks of channels from their sums.
void transform_weight_gradient(const GradientPass& pass, const float* sums, std::size_t out_block, std::size_t in_block,
                               float* weights) {
  const std::size_t in_channels = pass.in.blocks * kBlock;
  for (std::size_t channel = 0; channel < kBlock; ++channel) {
    Vector elements[4][4], window[3][3];
    load_matrix(sums + (out_block * in_channels + in_block * kBlock + channel) * kBlock,
                pass.out.blocks * in_channels * kBlock, elements);
    apply(kWeightGradientTransform, elements, window);
    store_matrix(window, weights + (out_block * pass.in.blocks + in_block) * kTaps * kWeightBlock + channel * kBlock,
                 kWeightBlock);
  }
}

void sum_pixels(const GradientPass& pass, const float* gradient, std::size_t out_block, float* bias) {
  const std::size_t floats = Plane{pass.out.height, pass.out.width}.floats();
  Vector sum{};
  for (std::size_t image = 0; image < pass.batch; ++image)
    for (std::size_t i = 0; i < floats; i += kBlock)
      sum += load<Vector>(gradient + (image * pass.out.blocks + out_block) * floats + i);
  store(sum, bias + out_block * kBlock);
}

}  // namespace

bool Winograd::supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                        const TensorSpec& weights) {
  constexpr std::size_t kLeastChannels = 2 * kBlock;
  constexpr double kLeastUse = 0.6;  // of the outputs that whole tiles have
  if (operation.kernel != Extent(3) || operation.stride != 1 || !operation.padding.square() ||
      operation.padding.height > 2)
    return false;
  for (const TensorSpec* images : {&input, &output})
    if (images->shape[1] < kLeastChannels || images->shape[1] % kBlock != 0) return false;
  const std::size_t height = output.shape[2], width = output.shape[3];
  if (static_cast<double>(height * width) < kLeastUse * static_cast<double>(4 * Tiles(height, width).per_image()))
    return false;
  using Tag = dnnl::memory::format_tag;
  constexpr Tag kImages = kBlock == 8 ? Tag::nChw8c : Tag::nChw16c;
  constexpr Tag kWeights = kBlock == 8 ? Tag::OIhw8i8o : Tag::OIhw16i16o;
  return has_layout(input, kImages) && has_layout(output, kImages) && has_layout(weights, kWeights);
}

Winograd::Winograd(const Convolution& operation, const TensorSpec& input, const TensorSpec& output)
    : threads_(static_cast<std::size_t>(omp_get_max_threads())),
      batch_(input.shape[0]),
      padding_(operation.padding.height),
      input_{input.shape[1] / kBlock, input.shape[2], input.shape[3]},
      output_{output.shape[1] / kBlock, output.shape[2], output.shape[3]} {}

void Winograd::forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias,
                       bool relu, std::span<float> output, DeviceView scratch) const {
  convolve({.batch = batch_,
            .padding = padding_,
            .in = input_,
            .out = output_,
            .turned = false,
            .source = input.data(),
            .weights = weights.data(),
            .bias = bias,
            .relu = relu,
            .destination = output.data()},
           threads_, scratch);
}

void Winograd::backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                             std::span<float> input_gradient, DeviceView scratch) const {
  convolve({.batch = batch_,
            .padding = 2 - padding_,
            .in = output_,
            .out = input_,
            .turned = true,
            .source = output_gradient.data(),
            .weights = weights.data(),
            .destination = input_gradient.data()},
           threads_, scratch);
}

void Winograd::backward_weights(std::span<const float> input, std::span<const float> output_gradient,
                                std::span<float> weights, std::span<float> bias, DeviceView scratch) const {
  const GradientPass pass{threads_, batch_, padding_, input_, output_};
  const Tiles tiles = pass.tiles();
  const std::size_t total = batch_ * tiles.per_image();
  const auto [count, capacity] = pass.blocks();
  float* const sums = take(scratch, pass.sum_floats());
  float* const inputs = take(scratch, pass.tile_floats(input_));
  float* const gradients = take(scratch, pass.tile_floats(output_));
  const std::size_t sums_stride = input_.blocks * kWeightBlock;
  const std::size_t groups = (output_.blocks + 2) / 3;
#pragma omp parallel num_threads(static_cast <int>(threads_))
  {
#pragma omp for schedule(static)
    for (std::size_t i = 0; i < kElements * output_.blocks; ++i) std::fill_n(sums + i * sums_stride, sums_stride, 0.0f);
    for (std::size_t block = 0; block < count; ++block) {
      const std::size_t begin = block * capacity, end = std::min(begin + capacity, total);
#pragma omp for schedule(static)
      for (std::size_t tile = begin; tile < end; tile += kTilesTogether) {
        const std::size_t stop = std::min(tile + kTilesTogether, end), place = (tile - begin) * kBlock;
        transform_tiles<4>(kInputTransform, input.data(), input_, padding_, tiles, tile, stop, capacity,
                           inputs + place);
        transform_tiles<2>(kOutputGradientTransform, output_gradient.data(), output_, 0, tiles, tile, stop, capacity,
                           gradients + place);
      }
#pragma omp for schedule(static) collapse(3)
      for (std::size_t element = 0; element < kElements; ++element)
        for (std::size_t group = 0; group < groups; ++group)
          for (std::size_t in = 0; in < input_.blocks; ++in) {
            const std::size_t out = group * output_.blocks / groups;
            const std::size_t place = element * output_.blocks + out;
            add_products(inputs + (element * input_.blocks + in) * capacity * kBlock,
                         gradients + place * capacity * kBlock, capacity * kBlock,
                         (group + 1) * output_.blocks / groups - out, end - begin,
                         sums + place * sums_stride + in * kWeightBlock, sums_stride);
          }
    }
#pragma omp for schedule(static) collapse(2)
    for (std::size_t out = 0; out < output_.blocks; ++out)
      for (std::size_t in = 0; in < input_.blocks; ++in) transform_weight_gradient(pass, sums, out, in, weights.data());
    if (!bias.empty())
#pragma omp for schedule(static)
      for (std::size_t out = 0; out < output_.blocks; ++out) sum_pixels(pass, output_gradient.data(), out, bias.data());
  }
}

std::size_t Winograd::scratch_bytes(Mode mode) const {
  const Pass forward{.batch = batch_, .padding = padding_, .in = input_, .out = output_};
  if (mode == Mode::inference) return forward.scratch_bytes(threads_);
  const Pass data{.batch = batch_, .padding = 2 - padding_, .in = output_, .out = input_};
  return std::max({forward.scratch_bytes(threads_), data.scratch_bytes(threads_),
                   GradientPass{threads_, batch_, padding_, input_, output_}.scratch_bytes()});
}

}  // namespace annulus::cpu
