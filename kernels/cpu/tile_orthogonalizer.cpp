#include "kernels/cpu/tile_orthogonalizer.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/tile_product.h"

// Functions in tile_product.h are inline, and need the same instructions.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

namespace annulus::cpu {
namespace {

using namespace tiles;

// Below this many multiplications waking the other threads costs more than they save.
constexpr std::size_t kParallelProducts = std::size_t{1} << 21;

// A matrix X of n rows and m columns, n <= m, in the user's memory, where it may be transposed.
struct Stored {
  float* values;
  MatrixSize size;
  bool transposed;

  // Where block (i, j), which may be cut off, is in the array.
  struct Part {
    float* first;
    std::size_t rows, columns;
  };
  Part part(std::size_t i, std::size_t j) const {
    const std::size_t row = (transposed ? j : i) * kBlock, column = (transposed ? i : j) * kBlock;
    return {values + row * size.columns + column, std::min(kBlock, size.rows - row),
            std::min(kBlock, size.columns - column)};
  }

  void load(std::size_t i, std::size_t j, float factor, Block& block) const {
    Block turned;
    Block& stored = transposed ? turned : block;
    const Part from = part(i, j);
    if (from.rows < kBlock || from.columns < kBlock) stored = {};
    for (std::size_t r = 0; r < from.rows; ++r)
      for_each_column(from, [=, row = from.first + r * size.columns, to = stored.at[r]](std::size_t c) {
        to[c] = factor * row[c];
      });
    if (transposed) transpose(turned, block);
  }

  void store(std::size_t i, std::size_t j, const Block& block) const {
    Block turned;
    if (transposed) transpose(block, turned);
    const Block& stored = transposed ? turned : block;
    const Part to = part(i, j);
    for (std::size_t r = 0; r < to.rows; ++r)
      for_each_column(to,
                      [row = to.first + r * size.columns, from = stored.at[r]](std::size_t c) { row[c] = from[c]; });
  }

 private:
  // The compiler vectorizes whole rows, which most are, without a remainder.
  template <class Visit>
  static void for_each_column(const Part& part, const Visit& visit) {
    if (part.columns == kBlock)
      for (std::size_t c = 0; c < kBlock; ++c) visit(c);
    else
      for (std::size_t c = 0; c < part.columns; ++c) visit(c);
  }
};

class TileOrthogonalizer final : public Orthogonalizer {
 public:
  explicit TileOrthogonalizer(const Muon& rule) : steps_(orthogonalizing_steps(rule)) {}

  void run(std::span<float> matrix, const MatrixSize& size) override {
    if (matrix.empty()) return;
    const Stored stored{matrix.data(), size, size.rows > size.columns};
    const auto blocks = [](std::size_t extent) { return (extent + kBlock - 1) / kBlock; };
    const std::size_t rows = blocks(std::min(size.rows, size.columns)),
                      columns = blocks(std::max(size.rows, size.columns));
    const Work work{Tiles(rows_, rows, columns),
                    Tiles(pairs_of_transpose_, rows, columns),
                    {Tiles(pairs_[0], columns, rows), Tiles(pairs_[1], columns, rows)},
                    squared_.first(rows * rows),
                    Tiles(squared_rows_, rows, rows),
                    Tiles(squared_pairs_, rows, rows),
                    Tiles(polynomial_, rows, rows)};
    const float factor = norm_factor(matrix);
#pragma omp parallel if (rows * rows * columns * kBlock * kBlock * kBlock >= kParallelProducts)
    {
      const TileRegisters registers;
      work.load(stored, factor);
      for (std::size_t step = 0; step < steps_.size(); ++step) {
        work.square();
        work.polynomial(steps_[step]);
        if (step + 1 < steps_.size())
          work.multiply(step % 2);
        else
          work.multiply_last(step % 2, stored);
      }
    }
  }

 private:
  // An iteration's arrays. All threads call the functions, which share the blocks and end with a barrier.
  struct Work {
    Tiles rows, pairs_of_transpose, pairs[2];  // X
    std::span<Block> squared;                  // S = X X^T
    Tiles squared_rows, squared_pairs;
    Tiles polynomial_rows;  // a I + b S + c S^2

    std::size_t height() const { return squared_rows.across(); }
    std::size_t width() const { return rows.across(); }

    void load(const Stored& from, float factor) const {
#pragma omp for collapse(2) schedule(static)
      for (std::size_t j = 0; j < width(); ++j)
        for (std::size_t i = 0; i < height(); ++i) {
          Block block;
          from.load(i, j, factor, block);
          store(block, i, j, pairs[0]);
        }
    }

    // Takes X in parts that stay in the cache. Each thread adds to the same blocks in all parts.
    void square() const {
      constexpr std::size_t kPart = 16;
      for (std::size_t k = 0; k < width(); k += kPart) square({k, std::min(k + kPart, width())});
#pragma omp barrier
    }

    void square(const Range& inner) const {
#pragma omp for collapse(2) schedule(static, 1) nowait
      for (std::size_t i = 0; i < height(); ++i)
        for (std::size_t j = 0; j < height(); ++j) {
          if (j < i) continue;
          Block& block = squared[i * height() + j];
          tiles::multiply(rows, i, pairs_of_transpose, j, block, inner);
          if (inner.end < width()) continue;
          for_both(block, i, j, [this](const Block& half, std::size_t k, std::size_t l) {
            store_rows(half, squared_rows, k, l);
            store_pairs_of_transpose(squared_rows, squared_pairs, k, l);
          });
        }
    }

    void polynomial(const OrthogonalizingStep& step) const {
#pragma omp for collapse(2) schedule(dynamic)
      for (std::size_t i = 0; i < height(); ++i)
        for (std::size_t j = 0; j < height(); ++j) {
          if (j < i) continue;
          Block block;
          tiles::multiply(squared_rows, i, squared_pairs, j, block);
          const Block& s = squared[i * height() + j];
          for (std::size_t r = 0; r < kBlock; ++r)
            for (std::size_t c = 0; c < kBlock; ++c) block.at[r][c] = step.b * s.at[r][c] + step.c * block.at[r][c];
          if (i == j)
            for (std::size_t r = 0; r < kBlock; ++r) block.at[r][r] += step.a;
          for_both(block, i, j, [this](const Block& half, std::size_t k, std::size_t l) {
            store_rows(half, polynomial_rows, k, l);
          });
        }
    }

    void multiply(std::size_t from) const {
      multiply(pairs[from],
               [this, from](const Block& block, std::size_t i, std::size_t j) { store(block, i, j, pairs[1 - from]); });
    }
    void multiply_last(std::size_t from, const Stored& to) const {
      multiply(pairs[from], [&to](const Block& block, std::size_t i, std::size_t j) { to.store(i, j, block); });
    }

   private:
    template <class Store>
    void multiply(const Tiles& x, const Store& store_block) const {
#pragma omp for collapse(2) schedule(static)
      for (std::size_t j = 0; j < width(); ++j)
        for (std::size_t i = 0; i < height(); ++i) {
          Block block;
          tiles::multiply(polynomial_rows, i, x, j, block);
          store_block(block, i, j);
        }
    }

    void store(const Block& block, std::size_t i, std::size_t j, const Tiles& to_pairs) const {
      store_rows(block, rows, i, j);
      store_pairs_of_transpose(rows, pairs_of_transpose, i, j);
      store_pairs(block, to_pairs, i, j);
    }

    // Calls visit(block, i, j), and if the block is above the diagonal, the same for its mirror image.
    template <class Visit>
    static void for_both(const Block& block, std::size_t i, std::size_t j, const Visit& visit) {
      visit(block, i, j);
      if (i == j) return;
      Block mirrored;
      transpose(block, mirrored);
      visit(mirrored, j, i);
    }
  };

  const std::vector<OrthogonalizingStep> steps_;
  HostArray<Bf16> rows_, pairs_of_transpose_, pairs_[2], squared_rows_, squared_pairs_, polynomial_;
  HostArray<Block> squared_;
};

}  // namespace

std::unique_ptr<Orthogonalizer> make_tile_orthogonalizer(const Muon& rule) {
  return std::make_unique<TileOrthogonalizer>(rule);
}

}  // namespace annulus::cpu

#pragma GCC pop_options
