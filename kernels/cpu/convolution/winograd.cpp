#include "kernels/cpu/convolution/winograd.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/dnnl_memory.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kBlock = kChannelBlock;
using Vector = Lanes<kBlock>::Floats;

constexpr std::size_t kTaps = 9;                        // in a window
constexpr std::size_t kWeightBlock = kBlock * kBlock;   // a tap's weights between two blocks of channels
constexpr std::size_t kTilesTogether = 6 * kBlock / 8;  // tiles with sums that fit into registers, two vectors for each
constexpr std::size_t kCacheFloats = 48 * 1024;         // in the transformed tiles that a thread processes at a time
constexpr std::size_t kTilesOfSum = 1024 / kBlock;      // that fit into the first-level cache

std::size_t rounded_up(std::size_t number, std::size_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// The matrices for F(2x2, 3x3), applied to a column.
struct SmallTiles {
  static constexpr std::size_t kOutputs = 2, kInputs = 4;

  static constexpr auto kInput = [](const Vector (&x)[4], Vector (&y)[4]) {  // B^T
    y[0] = x[0] - x[2];
    y[1] = x[1] + x[2];
    y[2] = x[2] - x[1];
    y[3] = x[1] - x[3];
  };
  static constexpr auto kWeight = [](const Vector (&x)[3], Vector (&y)[4]) {  // G
    const Vector ends = 0.5f * (x[0] + x[2]), middle = 0.5f * x[1];
    y[0] = x[0];
    y[1] = ends + middle;
    y[2] = ends - middle;
    y[3] = x[2];
  };
  static constexpr auto kOutput = [](const Vector (&x)[4], Vector (&y)[2]) {  // A^T
    y[0] = x[0] + x[1] + x[2];
    y[1] = x[1] - x[2] - x[3];
  };
  static constexpr auto kOutputGradient = [](const Vector (&x)[2], Vector (&y)[4]) {  // A
    y[0] = x[0];
    y[1] = x[0] + x[1];
    y[2] = x[0] - x[1];
    y[3] = -x[1];
  };
  static constexpr auto kWeightGradient = [](const Vector (&x)[4], Vector (&y)[3]) {  // G^T
    const Vector sum = 0.5f * (x[1] + x[2]);
    y[0] = x[0] + sum;
    y[1] = 0.5f * (x[1] - x[2]);
    y[2] = sum + x[3];
  };
};

// The matrices for F(4x4, 3x3) with the points 0, a, -a, b, -b and infinity with a^2 = 1/2 and b^2 = 2, so that ab = 1.
// (With the common choice a = 1 and b = 2, three times as many digits are lost.)
struct LargeTiles {
  static constexpr std::size_t kOutputs = 4, kInputs = 6;
  static constexpr float kA = 0.70710678118654752f, kB = 1.41421356237309505f;

  static constexpr auto kInput = [](const Vector (&x)[6], Vector (&y)[6]) {  // B^T
    const Vector even_a = x[4] - 2.0f * x[2], odd_a = kA * (x[3] - 2.0f * x[1]);
    const Vector even_b = x[4] - 0.5f * x[2], odd_b = kB * (x[3] - 0.5f * x[1]);
    y[0] = x[0] - 2.5f * x[2] + x[4];
    y[1] = even_a + odd_a;
    y[2] = even_a - odd_a;
    y[3] = even_b + odd_b;
    y[4] = even_b - odd_b;
    y[5] = x[1] - 2.5f * x[3] + x[5];
  };
  static constexpr auto kWeight = [](const Vector (&x)[3], Vector (&y)[6]) {  // G
    const Vector even_a = (-2.0f / 3) * (x[0] + 0.5f * x[2]), odd_a = (-2.0f / 3 * kA) * x[1];
    const Vector even_b = (1.0f / 6) * (x[0] + 2.0f * x[2]), odd_b = (1.0f / 6 * kB) * x[1];
    y[0] = x[0];
    y[1] = even_a + odd_a;
    y[2] = even_a - odd_a;
    y[3] = even_b + odd_b;
    y[4] = even_b - odd_b;
    y[5] = x[2];
  };
  static constexpr auto kOutput = [](const Vector (&x)[6], Vector (&y)[4]) {  // A^T
    const Vector sum_a = x[1] + x[2], difference_a = kA * (x[1] - x[2]);
    const Vector sum_b = x[3] + x[4], difference_b = kB * (x[3] - x[4]);
    y[0] = x[0] + sum_a + sum_b;
    y[1] = difference_a + difference_b;
    y[2] = 0.5f * sum_a + 2.0f * sum_b;
    y[3] = 0.5f * difference_a + 2.0f * difference_b + x[5];
  };
  static constexpr auto kOutputGradient = [](const Vector (&x)[4], Vector (&y)[6]) {  // A
    const Vector even_a = x[0] + 0.5f * x[2], odd_a = kA * (x[1] + 0.5f * x[3]);
    const Vector even_b = x[0] + 2.0f * x[2], odd_b = kB * (x[1] + 2.0f * x[3]);
    y[0] = x[0];
    y[1] = even_a + odd_a;
    y[2] = even_a - odd_a;
    y[3] = even_b + odd_b;
    y[4] = even_b - odd_b;
    y[5] = x[3];
  };
  static constexpr auto kWeightGradient = [](const Vector (&x)[6], Vector (&y)[3]) {  // G^T
    const Vector sum_a = (-2.0f / 3) * (x[1] + x[2]), sum_b = (1.0f / 6) * (x[3] + x[4]);
    y[0] = x[0] + sum_a + sum_b;
    y[1] = (-2.0f / 3 * kA) * (x[1] - x[2]) + (1.0f / 6 * kB) * (x[3] - x[4]);
    y[2] = 0.5f * sum_a + 2.0f * sum_b + x[5];
  };
};

template <class Formula>
constexpr std::size_t kElements = Formula::kInputs* Formula::kInputs;  // in a transformed tile

// y = T x T^T.
template <class Transform, std::size_t in, std::size_t out>
[[gnu::always_inline]] inline void apply(const Transform& transform, const Vector (&x)[in][in], Vector (&y)[out][out]) {
  Vector half[in][out];
#pragma GCC unroll 6
  for (std::size_t j = 0; j < in; ++j) {
    Vector column[in];
#pragma GCC unroll 6
    for (std::size_t i = 0; i < in; ++i) column[i] = x[i][j];
    transform(column, half[j]);
  }
#pragma GCC unroll 6
  for (std::size_t i = 0; i < out; ++i) {
    Vector row[in];
#pragma GCC unroll 6
    for (std::size_t j = 0; j < in; ++j) row[j] = half[j][i];
    transform(row, y[i]);
  }
}

// Loads a matrix of vectors with strides of `row` and `column` floats.
template <std::size_t size>
[[gnu::always_inline]] inline void load_matrix(const float* from, std::size_t row, std::size_t column,
                                               Vector (&x)[size][size]) {
#pragma GCC unroll 6
  for (std::size_t i = 0; i < size; ++i)
#pragma GCC unroll 6
    for (std::size_t j = 0; j < size; ++j) x[i][j] = load<Vector>(from + i * row + j * column);
}

template <std::size_t size>
[[gnu::always_inline]] inline void store_matrix(const Vector (&x)[size][size], float* to, std::size_t row,
                                                std::size_t column) {
#pragma GCC unroll 6
  for (std::size_t i = 0; i < size; ++i)
#pragma GCC unroll 6
    for (std::size_t j = 0; j < size; ++j) store(x[i][j], to + i * row + j * column);
}

// An image's block of channels.
struct Plane {
  std::size_t height, width;

  bool holds(std::ptrdiff_t y, std::ptrdiff_t x) const {
    return static_cast<std::size_t>(y) < height && static_cast<std::size_t>(x) < width;  // negative ones wrap around
  }
  bool holds(std::ptrdiff_t y, std::ptrdiff_t x, std::ptrdiff_t size) const {
    return holds(y, x) && holds(y + size - 1, x + size - 1);
  }
  std::size_t floats() const { return height * width * kBlock; }
  std::size_t row_floats() const { return width * kBlock; }
  std::ptrdiff_t at(std::ptrdiff_t y, std::ptrdiff_t x) const {
    return (y * static_cast<std::ptrdiff_t>(width) + x) * static_cast<std::ptrdiff_t>(kBlock);
  }

  // Calls body(floats, offset in the plane, offset in the square) for each row in the size x size square at (y, x), for
  // the row's part inside the plane.
  template <class Body>
  void for_each_row(std::ptrdiff_t y, std::ptrdiff_t x, std::ptrdiff_t size, const Body& body) const {
    const auto column = std::max<std::ptrdiff_t>(0, -x);
    const auto columns = std::min(size, static_cast<std::ptrdiff_t>(width) - x) - column;
    const auto rows_end = std::min(size, static_cast<std::ptrdiff_t>(height) - y);
    if (columns <= 0) return;
    for (std::ptrdiff_t row = std::max<std::ptrdiff_t>(0, -y); row < rows_end; ++row)
      body(static_cast<std::size_t>(columns) * kBlock, at(y + row, x + column),
           (row * size + column) * static_cast<std::ptrdiff_t>(kBlock));
  }

  // Loads the size x size square at (y, x), with zeros outside the plane.
  template <std::size_t size>
  [[gnu::always_inline]] void load_pixels(const float* plane, std::ptrdiff_t y, std::ptrdiff_t x,
                                          Vector (&pixels)[size][size]) const {
    float bordered[size * size * kBlock];
    const bool inside = holds(y, x, size);
    if (!inside) {
      std::fill_n(bordered, size * size * kBlock, 0.0f);
      for_each_row(y, x, size,
                   [&](auto floats, auto from, auto to) { std::copy_n(plane + from, floats, bordered + to); });
    }
    load_matrix(inside ? plane + at(y, x) : bordered, inside ? row_floats() : size * kBlock, kBlock, pixels);
  }

  // Stores the square's pixels that are inside the plane.
  template <std::size_t size>
  [[gnu::always_inline]] void store_pixels(const Vector (&pixels)[size][size], float* plane, std::ptrdiff_t y,
                                           std::ptrdiff_t x) const {
    float bordered[size * size * kBlock];
    const bool inside = holds(y, x, size);
    store_matrix(pixels, inside ? plane + at(y, x) : bordered, inside ? row_floats() : size * kBlock, kBlock);
    if (!inside)
      for_each_row(y, x, size,
                   [&](auto floats, auto to, auto from) { std::copy_n(bordered + from, floats, plane + to); });
  }
};

// A batch's tiles, numbered image by image and row by row.
template <class Formula>
struct Tiles {
  static constexpr std::size_t kSize = Formula::kOutputs;
  std::size_t rows, columns;

  Tiles(std::size_t height, std::size_t width)
      : rows((height + kSize - 1) / kSize), columns((width + kSize - 1) / kSize) {}
  std::size_t per_image() const { return rows * columns; }

  // Calls body(index from `begin`, image, first output's row, its column) for tiles [begin, end).
  template <class Body>
  void for_each(std::size_t begin, std::size_t end, const Body& body) const {
    std::size_t image = begin / per_image(), row = begin % per_image() / columns, column = begin % columns;
    for (std::size_t place = 0; place < end - begin; ++place) {
      body(place, image, static_cast<std::ptrdiff_t>(kSize * row), static_cast<std::ptrdiff_t>(kSize * column));
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

// Sums over input channels. The layout of `tiles` is {input blocks, tiles, channels in a block}; for each of the
// `vectors` output blocks, weights are {input channels, channels in a block} and sums {tiles, channels in a block}.
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
// gradients. Each block's sums are {input channels, channels in a block}.
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

// How a batch's tiles are divided into blocks.
struct Blocks {
  std::size_t count, tiles;  // how many blocks, and tiles in each (at most)
};

// Divides tiles into blocks with about `floats` transformed values, with `channel_blocks` blocks of channels for each
// tile. The block count is about a multiple of `multiple`.
template <class Formula>
Blocks cut(std::size_t tiles, std::size_t channel_blocks, std::size_t floats, std::size_t multiple) {
  constexpr std::size_t kLeast = 36;  // with fewer, reading all weights again does not pay off
  const std::size_t wanted = std::max(floats / (kElements<Formula> * kBlock * channel_blocks), kLeast);
  const std::size_t count = rounded_up((tiles + wanted - 1) / wanted, multiple);
  const std::size_t size = rounded_up((tiles + count - 1) / count, kTilesTogether);
  return {(tiles + size - 1) / size, size};
}

// Transforms the size x size pixels of each tile in [begin, end), to {elements, channel blocks, capacity, channels in a
// block}.
template <class Formula, std::size_t size, class Transform>
void transform_tiles(const Transform& transform, const float* images, const Winograd::Images& shape,
                     std::size_t padding, const Tiles<Formula>& tiles, std::size_t begin, std::size_t end,
                     std::size_t capacity, float* to) {
  const Plane plane{shape.height, shape.width};
  const auto border = static_cast<std::ptrdiff_t>(padding);
  tiles.for_each(begin, end, [&](std::size_t place, std::size_t image, std::ptrdiff_t y, std::ptrdiff_t x) {
    for (std::size_t block = 0; block < shape.blocks; ++block) {
      Vector pixels[size][size], elements[Formula::kInputs][Formula::kInputs];
      plane.load_pixels(images + (image * shape.blocks + block) * plane.floats(), y - border, x - border, pixels);
      apply(transform, pixels, elements);
      const std::size_t element = shape.blocks * capacity * kBlock;
      store_matrix(elements, to + (block * capacity + place) * kBlock, Formula::kInputs * element, element);
    }
  });
}

// A convolution, for forward() and backward_data().
template <class Formula>
struct Pass {
  std::size_t batch, padding;
  Winograd::Images in, out;
  bool turned = false;  // weights are rotated by 180 degrees, with outputs and inputs swapped
  const float* source = nullptr;
  const float* weights = nullptr;
  std::span<const float> bias{};
  bool relu = false;
  float* destination = nullptr;

  Tiles<Formula> tiles() const { return {out.height, out.width}; }
  Blocks blocks(std::size_t threads) const {
    return cut<Formula>(batch * tiles().per_image(), in.blocks + out.blocks, kCacheFloats, threads);
  }
  std::size_t weight_floats() const { return kElements<Formula> * in.blocks * out.blocks * kWeightBlock; }
  std::size_t input_floats(std::size_t capacity) const { return kElements<Formula> * in.blocks * capacity * kBlock; }
  std::size_t sum_floats(std::size_t capacity) const { return kElements<Formula> * out.blocks * capacity * kBlock; }
  std::size_t scratch_bytes(std::size_t threads) const {
    const std::size_t capacity = blocks(threads).tiles;
    return (weight_floats() + threads * (input_floats(capacity) + sum_floats(capacity))) * sizeof(float);
  }
};

// Transforms the weights between two blocks of channels, to {elements, output blocks, input channels, channels in a
// block}.
template <class Formula>
void transform_weights(const Pass<Formula>& pass, std::size_t out_block, std::size_t in_block, float* to) {
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
    Vector window[3][3], elements[Formula::kInputs][Formula::kInputs];
    load_matrix(taps[0] + channel * kBlock, 3 * kWeightBlock, kWeightBlock, window);
    apply(Formula::kWeight, window, elements);
    const std::size_t element = pass.out.blocks * in_channels * kBlock;
    store_matrix(elements, to + (out_block * in_channels + in_block * kBlock + channel) * kBlock,
                 Formula::kInputs * element, element);
  }
}

template <class Formula>
void multiply(const Pass<Formula>& pass, const float* inputs, const float* weights, std::size_t count,
              std::size_t capacity, float* sums) {
  const std::size_t in_stride = capacity * kBlock, weight_stride = pass.in.blocks * kWeightBlock;
  for (std::size_t element = 0; element < kElements<Formula>; ++element)
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

template <class Formula>
void transform_sums(const Pass<Formula>& pass, const float* sums, std::size_t begin, std::size_t end,
                    std::size_t capacity) {
  const Plane plane{pass.out.height, pass.out.width};
  const Vector least = Vector{} + (pass.relu ? 0.0f : -std::numeric_limits<float>::infinity());
  pass.tiles().for_each(begin, end, [&](std::size_t place, std::size_t image, std::ptrdiff_t y, std::ptrdiff_t x) {
    for (std::size_t block = 0; block < pass.out.blocks; ++block) {
      Vector elements[Formula::kInputs][Formula::kInputs], pixels[Formula::kOutputs][Formula::kOutputs];
      const std::size_t element = pass.out.blocks * capacity * kBlock;
      load_matrix(sums + (block * capacity + place) * kBlock, Formula::kInputs * element, element, elements);
      apply(Formula::kOutput, elements, pixels);
      const Vector bias = pass.bias.empty() ? Vector{} : load<Vector>(pass.bias.data() + block * kBlock);
#pragma GCC unroll 4
      for (auto& row : pixels)
#pragma GCC unroll 4
        for (Vector& pixel : row) {
          const Vector value = pixel + bias;
          pixel = value < least ? least : value;  // NaN stays
        }
      plane.store_pixels(pixels, pass.destination + (image * pass.out.blocks + block) * plane.floats(), y, x);
    }
  });
}

// Runs a pass on `threads` threads.
template <class Formula>
void convolve(const Pass<Formula>& pass, std::size_t threads, DeviceView scratch) {
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
      transform_tiles<Formula, Formula::kInputs>(Formula::kInput, pass.source, pass.in, pass.padding, pass.tiles(),
                                                 begin, end, blocks.tiles, own_inputs);
      multiply(pass, own_inputs, weights, end - begin, blocks.tiles, own_sums);
      transform_sums(pass, own_sums, begin, end, blocks.tiles);
    }
  }
}

// The weights' gradient.
template <class Formula>
struct GradientPass {
  std::size_t threads, batch, padding;
  Winograd::Images in, out;

  Tiles<Formula> tiles() const { return {out.height, out.width}; }
  Blocks blocks() const {
    return cut<Formula>(batch * tiles().per_image(), in.blocks + out.blocks,
                        std::max(threads * kCacheFloats, sum_floats()), 1);
  }
  std::size_t sum_floats() const { return kElements<Formula> * in.blocks * out.blocks * kWeightBlock; }
  std::size_t tile_floats(const Winograd::Images& images) const {
    return kElements<Formula> * images.blocks * blocks().tiles * kBlock;
  }
  std::size_t scratch_bytes() const { return (sum_floats() + tile_floats(in) + tile_floats(out)) * sizeof(float); }
};

// Adds up the products of a block of input channels with some blocks of output channels, for a single element.
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

// Computes the weights' gradient between two blocks of channels from their sums.
template <class Formula>
void transform_weight_gradient(const GradientPass<Formula>& pass, const float* sums, std::size_t out_block,
                               std::size_t in_block, float* weights) {
  const std::size_t in_channels = pass.in.blocks * kBlock;
  for (std::size_t channel = 0; channel < kBlock; ++channel) {
    Vector elements[Formula::kInputs][Formula::kInputs], window[3][3];
    const std::size_t element = pass.out.blocks * in_channels * kBlock;
    load_matrix(sums + (out_block * in_channels + in_block * kBlock + channel) * kBlock, Formula::kInputs * element,
                element, elements);
    apply(Formula::kWeightGradient, elements, window);
    store_matrix(window, weights + (out_block * pass.in.blocks + in_block) * kTaps * kWeightBlock + channel * kBlock,
                 3 * kWeightBlock, kWeightBlock);
  }
}

template <class Formula>
void sum_pixels(const GradientPass<Formula>& pass, const float* gradient, std::size_t out_block, float* bias) {
  const std::size_t floats = Plane{pass.out.height, pass.out.width}.floats();
  Vector sum{};
  for (std::size_t image = 0; image < pass.batch; ++image)
    for (std::size_t i = 0; i < floats; i += kBlock)
      sum += load<Vector>(gradient + (image * pass.out.blocks + out_block) * floats + i);
  store(sum, bias + out_block * kBlock);
}

// Writes `weights` and, unless it is empty, `bias`.
template <class Formula>
void sum_weight_gradient(const GradientPass<Formula>& pass, std::span<const float> input,
                         std::span<const float> output_gradient, std::span<float> weights, std::span<float> bias,
                         DeviceView scratch) {
  const Tiles<Formula> tiles = pass.tiles();
  const std::size_t total = pass.batch * tiles.per_image();
  const auto [count, capacity] = pass.blocks();
  float* const sums = take(scratch, pass.sum_floats());
  float* const inputs = take(scratch, pass.tile_floats(pass.in));
  float* const gradients = take(scratch, pass.tile_floats(pass.out));
  const std::size_t sums_stride = pass.in.blocks * kWeightBlock;
  const std::size_t groups = (pass.out.blocks + 2) / 3;
#pragma omp parallel num_threads(static_cast <int>(pass.threads))
  {
#pragma omp for schedule(static)
    for (std::size_t i = 0; i < kElements<Formula> * pass.out.blocks; ++i)
      std::fill_n(sums + i * sums_stride, sums_stride, 0.0f);
    for (std::size_t block = 0; block < count; ++block) {
      const std::size_t begin = block * capacity, end = std::min(begin + capacity, total);
#pragma omp for schedule(static)
      for (std::size_t tile = begin; tile < end; tile += kTilesTogether) {
        const std::size_t stop = std::min(tile + kTilesTogether, end), place = (tile - begin) * kBlock;
        transform_tiles<Formula, Formula::kInputs>(Formula::kInput, input.data(), pass.in, pass.padding, tiles, tile,
                                                   stop, capacity, inputs + place);
        transform_tiles<Formula, Formula::kOutputs>(Formula::kOutputGradient, output_gradient.data(), pass.out, 0,
                                                    tiles, tile, stop, capacity, gradients + place);
      }
#pragma omp for schedule(static) collapse(3)
      for (std::size_t element = 0; element < kElements<Formula>; ++element)
        for (std::size_t group = 0; group < groups; ++group)
          for (std::size_t in = 0; in < pass.in.blocks; ++in) {
            const std::size_t out = group * pass.out.blocks / groups;
            const std::size_t place = element * pass.out.blocks + out;
            add_products(inputs + (element * pass.in.blocks + in) * capacity * kBlock,
                         gradients + place * capacity * kBlock, capacity * kBlock,
                         (group + 1) * pass.out.blocks / groups - out, end - begin,
                         sums + place * sums_stride + in * kWeightBlock, sums_stride);
          }
    }
#pragma omp for schedule(static) collapse(2)
    for (std::size_t out = 0; out < pass.out.blocks; ++out)
      for (std::size_t in = 0; in < pass.in.blocks; ++in)
        transform_weight_gradient(pass, sums, out, in, weights.data());
    if (!bias.empty())
#pragma omp for schedule(static)
      for (std::size_t out = 0; out < pass.out.blocks; ++out)
        sum_pixels(pass, output_gradient.data(), out, bias.data());
  }
}

// Returns how many multiplications an image needs between two blocks of channels.
template <class Formula>
std::size_t multiplications(std::size_t height, std::size_t width) {
  return kElements<Formula> * Tiles<Formula>(height, width).per_image();
}

// Returns body(formula).
template <class Body>
auto with_formula(bool large_tiles, const Body& body) {
  return large_tiles ? body(LargeTiles{}) : body(SmallTiles{});
}

}  // namespace

bool Winograd::supports(const Convolution& operation, const TensorSpec& input, const TensorSpec& output,
                        const TensorSpec& weights) {
  constexpr std::size_t kLeastChannels = 2 * kBlock;
  constexpr double kLeastUse = 0.6;  // fraction of the tiles' outputs that must be inside the image
  if (operation.kernel != Extent(3) || !operation.basic() || operation.stride != 1 || operation.padding.top > 2)
    return false;
  for (const TensorSpec* images : {&input, &output})
    if (images->shape[1] < kLeastChannels || images->shape[1] % kBlock != 0) return false;
  const std::size_t height = output.shape[2], width = output.shape[3];
  if (static_cast<double>(height * width) <
      kLeastUse * static_cast<double>(4 * Tiles<SmallTiles>(height, width).per_image()))
    return false;
  using Tag = dnnl::memory::format_tag;
  constexpr Tag kImages = kBlock == 8 ? Tag::nChw8c : Tag::nChw16c;
  constexpr Tag kWeights = kBlock == 8 ? Tag::OIhw8i8o : Tag::OIhw16i16o;
  return has_layout(input, kImages) && has_layout(output, kImages) && has_layout(weights, kWeights);
}

Winograd::Winograd(const Convolution& operation, const TensorSpec& input, const TensorSpec& output)
    : threads_(static_cast<std::size_t>(omp_get_max_threads())),
      batch_(input.shape[0]),
      padding_(operation.padding.top),
      input_{input.shape[1] / kBlock, input.shape[2], input.shape[3]},
      output_{output.shape[1] / kBlock, output.shape[2], output.shape[3]} {}

// `images`: the images that the pass writes tile by tile or, for the weights' gradient, the outputs' gradients.
bool Winograd::large_tiles(const Images& images) {
  constexpr double kWorth = 0.8;  // fraction of the multiplications, because large tiles need more other work
  return static_cast<double>(multiplications<LargeTiles>(images.height, images.width)) <
         kWorth * static_cast<double>(multiplications<SmallTiles>(images.height, images.width));
}

void Winograd::forward(std::span<const float> input, std::span<const float> weights, std::span<const float> bias,
                       bool relu, std::span<float> output, DeviceView scratch) const {
  with_formula(large_tiles(output_), [&]<class Formula>(Formula) {
    convolve(Pass<Formula>{.batch = batch_,
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
  });
}

void Winograd::backward_data(std::span<const float> output_gradient, std::span<const float> weights,
                             std::span<float> input_gradient, DeviceView scratch) const {
  with_formula(large_tiles(input_), [&]<class Formula>(Formula) {
    convolve(Pass<Formula>{.batch = batch_,
                           .padding = 2 - padding_,
                           .in = output_,
                           .out = input_,
                           .turned = true,
                           .source = output_gradient.data(),
                           .weights = weights.data(),
                           .destination = input_gradient.data()},
             threads_, scratch);
  });
}

void Winograd::backward_weights(std::span<const float> input, std::span<const float> output_gradient,
                                std::span<float> weights, std::span<float> bias, DeviceView scratch) const {
  with_formula(large_tiles(output_), [&]<class Formula>(Formula) {
    sum_weight_gradient(GradientPass<Formula>{threads_, batch_, padding_, input_, output_}, input, output_gradient,
                        weights, bias, scratch);
  });
}

std::size_t Winograd::scratch_bytes(Mode mode) const {
  const std::size_t forward = with_formula(large_tiles(output_), [&]<class Formula>(Formula) {
    return Pass<Formula>{.batch = batch_, .padding = padding_, .in = input_, .out = output_}.scratch_bytes(threads_);
  });
  if (mode == Mode::inference) return forward;
  const std::size_t data = with_formula(large_tiles(input_), [&]<class Formula>(Formula) {
    return Pass<Formula>{.batch = batch_, .padding = 2 - padding_, .in = output_, .out = input_}.scratch_bytes(
        threads_);
  });
  const std::size_t weights = with_formula(large_tiles(output_), [&]<class Formula>(Formula) {
    return GradientPass<Formula>{threads_, batch_, padding_, input_, output_}.scratch_bytes();
  });
  return std::max({forward, data, weights});
}

}  // namespace annulus::cpu
