#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/split.h"
#include "kernels/cpu/loops/math.h"
#include "kernels/cpu/loops/vectors.h"
#include "kernels/cpu/plan/plain_op.h"
#include "kernels/dropout_mask.h"

namespace annulus::cpu {
namespace {

constexpr std::size_t kLanes = kChannelBlock;
constexpr std::size_t kPanel = 2 * kLanes;  // columns in a product's tile
constexpr std::size_t kRows = 6;            // rows in a tile: so the tile's sums fit into registers
constexpr std::size_t kBlock = 64;          // about how many queries, and keys, are multiplied at a time
constexpr std::size_t kLine = 16;           // floats in a cache line
// How many tasks backward aims at: if there are fewer heads, their keys are divided into parts. The number does not
// depend on the thread count, so neither do the results.
constexpr std::size_t kParts = 32;

using Vector = Lanes<kLanes>::Floats;
using Eight = Lanes<8>::Floats;

std::size_t round_up(std::size_t number, std::size_t multiple) {
  return (number + multiple - 1) / multiple * multiple;
}

// A matrix in row-major memory, or a transposed matrix: `stride` is the distance between rows in memory.
template <bool transposed>
struct Left {
  const float* values;
  std::size_t stride;

  const float* at(std::size_t row, std::size_t column) const {
    return transposed ? values + column * stride + row : values + row * stride + column;
  }
};

struct Right {
  const float* values;
  std::size_t stride;
};

struct Product {
  float* values;
  std::size_t stride;
  bool add;  // to the values
};

// Computes `rows` x `vectors` vectors of a product.
template <std::size_t rows, std::size_t vectors, bool transposed>
[[gnu::noinline]] void multiply_tile(Left<transposed> a, std::size_t row, Right b, std::size_t column,
                                     std::size_t depth, Product c) {
  Vector sums[rows][vectors];
  float* const to = c.values + row * c.stride + column;
#pragma GCC unroll 12
  for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v)
      sums[r][v] = c.add ? load<Vector>(to + r * c.stride + v * kLanes) : Vector{};
  const float *right = b.values + column, *left = a.at(row, 0);
  const std::size_t across = transposed ? 1 : a.stride, along = transposed ? a.stride : 1;
#pragma GCC unroll 1
  for (std::size_t k = 0; k < depth; ++k, right += b.stride, left += along) {
    Vector of_b[vectors];
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v) of_b[v] = load<Vector>(right + v * kLanes);
#pragma GCC unroll 12
    for (std::size_t r = 0; r < rows; ++r) {
      const float factor = left[r * across];
#pragma GCC unroll 2
      for (std::size_t v = 0; v < vectors; ++v) sums[r][v] += of_b[v] * factor;
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v) store(sums[r][v], to + r * c.stride + v * kLanes);
}

// Computes some columns for all rows.
template <std::size_t vectors, bool transposed>
void multiply_panel(Left<transposed> a, std::size_t rows, Right b, std::size_t column, std::size_t depth, Product c) {
  constexpr std::size_t kMost = 2 * kRows / vectors;
  std::size_t row = 0;
  for (; row + kMost <= rows; row += kMost) multiply_tile<kMost, vectors>(a, row, b, column, depth, c);
  if constexpr (kMost > kRows)
    for (; row + kRows <= rows; row += kRows) multiply_tile<kRows, vectors>(a, row, b, column, depth, c);
  switch (rows - row) {
    case 5:
      return multiply_tile<5, vectors>(a, row, b, column, depth, c);
    case 4:
      return multiply_tile<4, vectors>(a, row, b, column, depth, c);
    case 3:
      return multiply_tile<3, vectors>(a, row, b, column, depth, c);
    case 2:
      return multiply_tile<2, vectors>(a, row, b, column, depth, c);
    case 1:
      return multiply_tile<1, vectors>(a, row, b, column, depth, c);
    default:
      return;
  }
}

// c = a b, or c += a b. REQUIRES: columns are a multiple of kLanes.
template <bool transposed>
void multiply(Left<transposed> a, std::size_t rows, Right b, std::size_t columns, std::size_t depth, Product c) {
  std::size_t column = 0;
  for (; column + kPanel <= columns; column += kPanel) multiply_panel<2>(a, rows, b, column, depth, c);
  if (column < columns) multiply_panel<1>(a, rows, b, column, depth, c);
}

[[gnu::always_inline]] inline void transpose_eight(const float* from, std::size_t from_stride, float* to,
                                                   std::size_t to_stride, float factor) {
  Eight rows[8], pairs[8], fours[8];
  for (std::size_t i = 0; i < 8; ++i) rows[i] = load<Eight>(from + i * from_stride) * factor;
  for (std::size_t i = 0; i < 8; i += 2) {
    pairs[i] = __builtin_shufflevector(rows[i], rows[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(rows[i], rows[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (std::size_t i = 0; i < 8; i += 4)
    for (std::size_t k = 0; k < 2; ++k) {
      fours[i + 2 * k] = __builtin_shufflevector(pairs[i + k], pairs[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * k + 1] = __builtin_shufflevector(pairs[i + k], pairs[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (std::size_t i = 0; i < 4; ++i) {
    store(__builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11), to + i * to_stride);
    store(__builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15), to + (i + 4) * to_stride);
  }
}

// to = factor x `from` {rows, columns}, transposed.
void transpose(const float* from, std::size_t from_stride, std::size_t rows, std::size_t columns, float factor,
               float* to, std::size_t to_stride) {
  const std::size_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (std::size_t i = 0; i < whole_rows; i += 8)
    for (std::size_t k = 0; k < whole_columns; k += 8)
      transpose_eight(from + i * from_stride + k, from_stride, to + k * to_stride + i, to_stride, factor);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t k = i < whole_rows ? whole_columns : 0; k < columns; ++k)
      to[k * to_stride + i] = from[i * from_stride + k] * factor;
}

// Fills columns [begin, end) of each row with zeros.
void clear_columns(float* matrix, std::size_t stride, std::size_t rows, std::size_t begin, std::size_t end) {
  if (begin == end) return;
  for (std::size_t row = 0; row < rows; ++row)
    std::fill(matrix + row * stride + begin, matrix + row * stride + end, 0.0f);
}

// Dao, "FlashAttention-2", ICLR 2024: blocks of queries meet blocks of keys, so that no matrix of attention weights is
// stored. Forward computes transposed products, with neighbouring queries beside each other in a row: so softmax needs
// no sums within vectors, and neither the keys nor the values have to be transposed.
class AttentionOp : public PlainOp {
 public:
  AttentionOp(const Attention& operation, const Specs& inputs, Mode mode)
      : PlainOp(inputs, {inputs[0].shape[0], inputs[0].shape[1], inputs[0].shape[2] / 3}),
        causal_(operation.causal),
        drops_(operation.dropout > 0 && mode == Mode::training),
        mask_(operation.dropout, operation.number),
        batch_(inputs[0].shape[0]),
        length_(inputs[0].shape[1]),
        width_(inputs[0].shape[2] / 3),
        heads_(operation.heads),
        each_(width_ / heads_),
        padded_(round_up(each_, kLanes)),
        scale_(1 / std::sqrt(static_cast<float>(each_))),
        threads_(static_cast<std::size_t>(omp_get_max_threads())) {
    const std::size_t blocks = std::max<std::size_t>(1, (length_ + kBlock / 2) / kBlock);
    block_ = round_up((length_ + blocks - 1) / blocks, kPanel);
    blocks_ = (length_ + block_ - 1) / block_;
    parts_ = std::min((kParts + batch_ * heads_ - 1) / (batch_ * heads_), blocks_);
    std::size_t floats = threads_ * forward_floats();
    if (mode == Mode::training)
      floats = std::max(floats, threads_ * backward_floats() + (parts_ - 1) * batch_ * length_ * width_);
    need_scratch(floats * sizeof(float));
    info_.backward_reads_output = true;
  }

 private:
  // Cuts a thread's scratch memory into arrays that begin at cache lines.
  class Arrays {
   public:
    explicit Arrays(float* begin) : next_(begin) {}
    float* take(std::size_t floats) { return std::exchange(next_, next_ + round_up(floats, kLine)); }

   private:
    float* next_;
  };

  std::size_t forward_floats() const {
    return 2 * round_up(block_ * each_, kLine) + 2 * round_up(each_ * block_, kLine) + (block_ + 3) * block_;
  }
  std::size_t backward_floats() const {
    return 2 * round_up(each_ * block_, kLine) + 6 * round_up(block_ * padded_, kLine) + 2 * block_ * block_;
  }

  Arrays own_arrays(std::size_t floats_each) const {
    return Arrays(floats(own_scratch()).data() + static_cast<std::size_t>(omp_get_thread_num()) * floats_each);
  }

  Range tokens(std::size_t block) const { return {block * block_, std::min((block + 1) * block_, length_)}; }

  // Offsets in the input and in the output: a token's queries (part 0), keys (1) or values (2) for a head.
  std::size_t in_input(std::size_t head, std::size_t token, std::size_t part) const {
    return ((head / heads_ * length_ + token) * 3 + part) * width_ + head % heads_ * each_;
  }
  std::size_t in_output(std::size_t head, std::size_t token) const {
    return (head / heads_ * length_ + token) * width_ + head % heads_ * each_;
  }

  // Copies a head's rows, times a factor, and fills the columns up to `stride` with zeros.
  void pack(const float* from, std::size_t from_stride, std::size_t rows, float factor, float* to,
            std::size_t stride) const {
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < each_; ++i) to[row * stride + i] = from[row * from_stride + i] * factor;
    clear_columns(to, stride, rows, each_, stride);
  }

  // Not when it is planned: images may be too large to be processed here.
  void bound() override {
    if (!training()) return;
    sums_.resize(batch_ * heads_ * length_);
    products_.resize(batch_ * heads_ * length_);
  }

  void compute() override {
    const std::size_t tasks = batch_ * heads_ * blocks_;
#pragma omp parallel for schedule(dynamic)
    for (std::size_t task = 0; task < tasks; ++task) attend(task / blocks_, blocks_ - 1 - task % blocks_);
  }

  // Computes a block of queries; "head" counts all samples' heads.
  void attend(std::size_t head, std::size_t block) {
    const Range queries = tokens(block);
    const std::size_t count = queries.end - queries.begin, columns = round_up(count, kLanes);
    Arrays arrays = own_arrays(forward_floats());
    float *keys = arrays.take(block_ * each_), *values = arrays.take(block_ * each_);
    float *turned = arrays.take(each_ * block_), *sums = arrays.take(each_ * block_);  // {features, queries}
    float* weights = arrays.take(block_ * block_);                                     // {keys, queries}
    float *most = arrays.take(block_), *totals = arrays.take(block_), *factors = arrays.take(block_);
    transpose(input(0) + in_input(head, queries.begin, 0), 3 * width_, count, each_, scale_, turned, block_);
    clear_columns(turned, block_, each_, count, columns);
    std::fill_n(most, columns, -std::numeric_limits<float>::infinity());
    std::fill_n(totals, columns, 0.0f);
    for (std::size_t other = 0; other < (causal_ ? block + 1 : blocks_); ++other) {
      const Range range = tokens(other);
      const std::size_t size = range.end - range.begin;
      pack(input(0) + in_input(head, range.begin, 1), 3 * width_, size, 1, keys, each_);
      pack(input(0) + in_input(head, range.begin, 2), 3 * width_, size, 1, values, each_);
      multiply(Left<false>{keys, each_}, size, {turned, block_}, columns, each_, {weights, block_, false});
      if (causal_ && other == block)
        for (std::size_t key = 1; key < size; ++key)
          std::fill_n(weights + key * block_, key, -std::numeric_limits<float>::infinity());
      exponentiate(weights, size, columns, most, totals, factors);
      if (drops_) drop(head, queries.begin, range.begin, {size, 1}, {count, length_}, weights);
      if (other > 0)
        for (std::size_t i = 0; i < each_; ++i)
          for (std::size_t q = 0; q < columns; ++q) sums[i * block_ + q] *= factors[q];
      multiply(Left<true>{values, each_}, each_, {weights, block_}, columns, size, {sums, block_, other > 0});
    }
    for (std::size_t q = 0; q < columns; ++q) factors[q] = 1 / totals[q];
    for (std::size_t i = 0; i < each_; ++i)
      for (std::size_t q = 0; q < columns; ++q) sums[i * block_ + q] *= factors[q];
    transpose(sums, block_, each_, count, 1, output() + in_output(head, queries.begin), width_);
    if (!sums_.empty())
      for (std::size_t q = 0; q < count; ++q) sums_[head * length_ + queries.begin + q] = most[q] + std::log(totals[q]);
  }

  // The rows or columns of a weight matrix, and how far apart the mask has elements for neighbouring rows or columns.
  struct Side {
    std::size_t count, step;
  };

  // Multiplies a block of a head's weights (or their gradients), from a query and a key on, by the dropout factors.
  void drop(std::size_t head, std::size_t query, std::size_t key, Side rows, Side columns, float* matrix) const {
    const auto* keys = reinterpret_cast<const std::int32_t*>(input_view(1).address);
    const std::uint64_t sample = mask_.of_sample(keys[head / heads_]);
    const std::size_t first = (head % heads_ * length_ + query) * length_ + key;
    for (std::size_t r = 0; r < rows.count; ++r) {
      const std::size_t element = first + r * rows.step;
      float* row = matrix + r * block_;
#pragma omp simd
      for (std::size_t c = 0; c < columns.count; ++c) row[c] *= mask_.at(sample, element + c * columns.step);
    }
  }

  // Replaces some keys' scores by their exponentials relative to each query's largest score so far, adds these to the
  // totals, and returns the factors by which earlier exponentials change.
  void exponentiate(float* weights, std::size_t keys, std::size_t columns, float* most, float* totals,
                    float* factors) const {
    std::copy_n(most, columns, factors);
    for (std::size_t key = 0; key < keys; ++key) {
      const float* row = weights + key * block_;
#pragma omp simd
      for (std::size_t q = 0; q < columns; ++q) most[q] = row[q] > most[q] ? row[q] : most[q];
    }
#pragma omp simd
    for (std::size_t q = 0; q < columns; ++q) {
      factors[q] = exponential(factors[q] - most[q]);
      totals[q] *= factors[q];
    }
    for (std::size_t key = 0; key < keys; ++key) {
      float* row = weights + key * block_;
#pragma omp simd
      for (std::size_t q = 0; q < columns; ++q) {
        row[q] = exponential(row[q] - most[q]);
        totals[q] += row[q];
      }
    }
  }

  // With weights P = exp(Q K^T - log of sums), dropout factors M, output O = (M P) V and G = P (M (dO V^T) - the sums
  // of dO O): dV = (M P)^T dO, dQ = G K, dK = G^T Q.
  void differentiate() override {
#pragma omp parallel for schedule(static)
    for (std::size_t token = 0; token < batch_ * length_; ++token)
      for (std::size_t head = 0; head < heads_; ++head) {
        const std::size_t at = token * width_ + head * each_;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::size_t i = 0; i < each_; ++i) sum += output()[at + i] * output_gradient()[at + i];
        products_[(token / length_ * heads_ + head) * length_ + token % length_] = sum;
      }
    const std::size_t tasks = batch_ * heads_ * parts_;
#pragma omp parallel for schedule(dynamic)
    for (std::size_t task = 0; task < tasks; ++task) differentiate_part(task / parts_, task % parts_);
    if (parts_ == 1) return;
    const float* partial = partial_gradients();
    const std::size_t size = batch_ * length_ * width_;
#pragma omp parallel for schedule(static)
    for (std::size_t token = 0; token < batch_ * length_; ++token)
      for (std::size_t part = 0; part + 1 < parts_; ++part)
        for (std::size_t i = 0; i < width_; ++i)
          input_gradient(0)[token * 3 * width_ + i] += partial[part * size + token * width_ + i];
  }

  // Behind the threads' arrays: the sums that parts other than the first contribute to the queries' gradients.
  float* partial_gradients() const {
    return floats(own_scratch()).data() + threads_ * backward_floats();
  }

  // Runs backward for a part of a head's key blocks.
  void differentiate_part(std::size_t head, std::size_t part) const {
    const std::size_t in_row = 3 * width_;
    const std::size_t to_row = part == 0 ? in_row : width_;
    float* const to = part == 0 ? input_gradient(0) + in_input(head, 0, 0)
                                : partial_gradients() + (part - 1) * batch_ * length_ * width_ + in_output(head, 0);
    for (std::size_t q = 0; q < length_; ++q) std::fill_n(to + q * to_row, each_, 0.0f);
    Arrays arrays = own_arrays(backward_floats());
    float *turned_keys = arrays.take(each_ * block_), *turned_values = arrays.take(each_ * block_);
    const std::size_t rows = block_ * padded_;
    float *keys = arrays.take(rows), *to_keys = arrays.take(rows), *to_values = arrays.take(rows);
    float *queries = arrays.take(rows), *to_queries = arrays.take(rows), *gradients = arrays.take(rows);
    float *weights = arrays.take(block_ * block_), *slopes = arrays.take(block_ * block_);  // {queries, keys}
    const Range range = split(blocks_, parts_, part);
    for (std::size_t block = range.begin; block < range.end; ++block) {
      const Range own = tokens(block);
      const std::size_t size = own.end - own.begin, columns = round_up(size, kLanes);
      const float *from_keys = input(0) + in_input(head, own.begin, 1), *from_values = from_keys + width_;
      transpose(from_keys, in_row, size, each_, 1, turned_keys, block_);
      transpose(from_values, in_row, size, each_, 1, turned_values, block_);
      clear_columns(turned_keys, block_, each_, size, columns);
      clear_columns(turned_values, block_, each_, size, columns);
      pack(from_keys, in_row, size, 1, keys, padded_);
      const std::size_t first = causal_ ? block : 0;
      for (std::size_t other = first; other < blocks_; ++other) {
        const Range range_of_queries = tokens(other);
        const std::size_t begin = range_of_queries.begin, count = range_of_queries.end - begin;
        pack(input(0) + in_input(head, begin, 0), in_row, count, scale_, queries, padded_);
        pack(output_gradient() + in_output(head, begin), width_, count, 1, gradients, padded_);
        multiply(Left<false>{queries, padded_}, count, {turned_keys, block_}, columns, each_, {weights, block_, false});
        multiply(Left<false>{gradients, padded_}, count, {turned_values, block_}, columns, each_,
                 {slopes, block_, false});
        if (drops_) drop(head, begin, own.begin, {count, length_}, {size, 1}, slopes);
        for (std::size_t q = 0; q < count; ++q) {
          const std::size_t at = head * length_ + begin + q;
          const std::size_t seen = causal_ && other == block ? q + 1 : columns;
          differentiate_row(weights + q * block_, slopes + q * block_, columns, seen, sums_[at], products_[at]);
        }
        if (drops_) drop(head, begin, own.begin, {count, length_}, {size, 1}, weights);
        const bool add = other > first;
        multiply(Left<true>{weights, block_}, size, {gradients, padded_}, padded_, count, {to_values, padded_, add});
        multiply(Left<true>{slopes, block_}, size, {queries, padded_}, padded_, count, {to_keys, padded_, add});
        multiply(Left<false>{slopes, block_}, count, {keys, padded_}, padded_, size, {to_queries, padded_, false});
        for (std::size_t q = 0; q < count; ++q)
          for (std::size_t i = 0; i < each_; ++i) to[(begin + q) * to_row + i] += scale_ * to_queries[q * padded_ + i];
      }
      float* const gradient = input_gradient(0) + in_input(head, own.begin, 1);
      for (std::size_t key = 0; key < size; ++key) {
        std::copy_n(to_keys + key * padded_, each_, gradient + key * in_row);
        std::copy_n(to_values + key * padded_, each_, gradient + width_ + key * in_row);
      }
    }
  }

  // Replaces a query's scores by weights, and the products of the values with the output's gradient by the scores'
  // gradients. Only the first `seen` keys count.
  static void differentiate_row(float* weights, float* slopes, std::size_t keys, std::size_t seen, float sum,
                                float product) {
#pragma omp simd
    for (std::size_t key = 0; key < keys; ++key) {
      weights[key] = exponential(weights[key] - sum);
      slopes[key] = weights[key] * (slopes[key] - product);
    }
    std::fill(weights + seen, weights + keys, 0.0f);
    std::fill(slopes + seen, slopes + keys, 0.0f);
  }

  bool causal_;
  bool drops_;
  DropoutMask mask_;
  std::size_t batch_, length_, width_, heads_;
  std::size_t each_, padded_;  // a head's width; rounded up to whole vectors
  float scale_;
  std::size_t threads_;
  std::size_t block_ = 0, blocks_ = 0;  // tokens in a block, and the block count
  std::size_t parts_ = 0;               // parts of a head's keys, which backward computes at the same time
  std::vector<float> sums_;             // the logarithm of each query's sum of exponentials
  std::vector<float> products_;         // each query's output times the output's gradient
};

}  // namespace

std::unique_ptr<Op> plan(const Attention& operation, const Specs& inputs, Mode mode, const Specs&) {
  return std::make_unique<AttentionOp>(operation, inputs, mode);
}

}  // namespace annulus::cpu
