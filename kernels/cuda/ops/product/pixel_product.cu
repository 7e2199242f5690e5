// A 1x1 convolution without stride as a matrix product, for compute capability 9.0, which also does passes of the
// batch norms beside it (product.h): {pixels, channels} times the weights {filters, channels} transposed, and in
// backward {pixels, filters} times the weights.
//
// A block multiplies 128 rows at a time by 64 or 128 weight columns, and moves down the matrix. The left
// operand passes through registers, and the next chunk's loads are in flight meanwhile.
//
//   chunk i      load -> registers -> batch norm, ReLU -> shared memory -> products
//   chunk i + 1          load ->      registers ...

#include "kernels/cuda/ops/product/pixel_product.h"

#include "kernels/cuda/ops/product/product.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kRowStep = kThreads / kTileVectors, kFetches = kRows / kRowStep;  // a thread's left values
constexpr unsigned kLeftBytes = kRows * kTileRowBytes;

// A stage of both operands in shared memory, which holds two, and then a ProductEnd.
template <unsigned columns>
constexpr unsigned kStageBytes = kLeftBytes + columns* kTileRowBytes;

// A part from the left operand: 64 values in each row, 128 rows.
struct Chunk {
  unsigned tile, number;
};

// A thread's work.
template <class T, unsigned columns, Pass pass>
class Worker {
 public:
  __device__ explicit Worker(const Product<T>& product)
      : p_(product),
        self_(threadIdx.x),
        end_(product, shared_memory() + 2 * kStageBytes<columns>),
        chunks_((product.inner + kTileValues - 1) / kTileValues),
        tiles_((product.rows + kRows - 1) / kRows) {}

  __device__ void run() {
    end_.clear_sums();
    Chunk now{blockIdx.y, 0};
    fetch_left(now);
    copy_weights(0, 0);
    for (unsigned stage = 0; now.tile < tiles_;) {
      const unsigned tile = now.tile;
      for (float& sum : sums_) sum = 0;
      do {  // ptxas lets products run while the next chunk is stored only if nothing else is in this loop
        store_left(now, stage);
        const Chunk next = after(now);
        fetch_left(next);
        __pipeline_wait_prior(0);
        await_products(sums_);  // the last chunk's, from the other stage
        publish_tiles();
        __syncthreads();
        multiply_stage(stage);
        stage ^= 1;
        if (next.tile < tiles_) copy_weights(next.number, stage);
        now = next;
      } while (now.number > 0);
      await_products(sums_);
      end_.finish_tile(tile, sums_);
    }
    end_.finish_sums();
  }

 private:
  static constexpr bool kBackward = is_backward(pass);

  __device__ Chunk after(const Chunk& chunk) const {
    if (chunk.number + 1 < chunks_) return {chunk.tile, chunk.number + 1};
    return {chunk.tile + gridDim.y, 0};
  }

  __device__ std::byte* left(unsigned stage) const { return shared_memory() + stage * kStageBytes<columns>; }
  __device__ std::byte* right(unsigned stage) const { return left(stage) + kLeftBytes; }

  // A thread's vectors in a chunk have the same channels.
  __device__ unsigned channel(const Chunk& chunk) const {
    return chunk.number * kTileValues + self_ % kTileVectors * 8;
  }
  __device__ unsigned row(const Chunk& chunk, unsigned fetch) const {
    return chunk.tile * kRows + self_ / kTileVectors + fetch * kRowStep;
  }
  __device__ bool exists(const Chunk& chunk, unsigned fetch) const {
    return row(chunk, fetch) < p_.rows && channel(chunk) < p_.inner;
  }
  __device__ unsigned index(const Chunk& chunk, unsigned fetch) const {
    return row(chunk, fetch) * (p_.inner / 8) + channel(chunk) / 8;
  }

  __device__ void fetch_left(const Chunk& chunk) {
    for (unsigned i = 0; i < kFetches; ++i) {
      const bool there = exists(chunk, i);
      values_[i] = there ? fetch(p_.left, index(chunk, i)) : Packed<T>{};
      if constexpr (pass == Pass::block_end) addends_[i] = there ? fetch(p_.addend, index(chunk, i)) : Packed<T>{};
    }
  }

  __device__ void store_left(const Chunk& chunk, unsigned stage) {
    if (computes_input(pass) && channel(chunk) < p_.inner) normalize(chunk);
    for (unsigned i = 0; i < kFetches; ++i)
      *reinterpret_cast<Packed<T>*>(
          left(stage) + tile_offset(self_ / kTileVectors + i * kRowStep, self_ % kTileVectors)) = values_[i];
  }

  __device__ void normalize(const Chunk& chunk) {
    const auto factor = load_floats<8>(p_.factor + channel(chunk)), offset = load_floats<8>(p_.offset + channel(chunk));
    for (unsigned i = 0; i < kFetches; ++i) {
      if (!exists(chunk, i)) continue;
      values_[i] = normalized<T, pass>(values_[i], addends_[i], factor, offset);
      if (blockIdx.x == 0) reinterpret_cast<Packed<T>*>(p_.normalized)[index(chunk, i)] = values_[i];
    }
  }

  // Copies 64 terms for each column. In backward these are weight rows, in blocks with 64 columns.
  __device__ void copy_weights(unsigned chunk, unsigned stage) {
#pragma unroll 1
    for (unsigned i = 0; i < columns / kRowStep; ++i) {
      const unsigned place = self_ / kTileVectors + i * kRowStep, vector = self_ % kTileVectors;
      const unsigned in_chunk = kBackward ? place % kTileValues : vector * 8;
      const unsigned in_tile = kBackward ? place / kTileValues * kTileValues + vector * 8 : place;
      const unsigned term = chunk * kTileValues + in_chunk, column = end_.first_column() + in_tile;
      const bool there = term < p_.inner && column < p_.columns;
      const unsigned at = kBackward ? term * p_.columns + column : column * p_.inner + term;
      __pipeline_memcpy_async(right(stage) + tile_offset(place, vector), p_.weights + (there ? at : 0), 16,
                              there ? 0 : 16);
    }
    __pipeline_commit();
  }

  __device__ void multiply_stage(unsigned stage) {
    constexpr unsigned kTermBytes = kProductDepth * 2, kTermRows = kProductDepth * kTileRowBytes;
    const std::byte* const rows = left(stage) + self_ / kWarpgroup * kWarpgroupRows * kTileRowBytes;
    begin_products();
    for (unsigned k = 0; k < kTileValues / kProductDepth; ++k) {
      if constexpr (kBackward)
        multiply<T, Neighbours::results>(sums_, described(rows + k * kTermBytes),
                                         described(right(stage) + k * kTermRows, kTileValues * kTileRowBytes));
      else
        multiply<T, Neighbours::terms>(sums_, described(rows + k * kTermBytes),
                                       described(right(stage) + k * kTermBytes));
    }
    end_products();
  }

  const Product<T>& p_;
  const unsigned self_;
  ProductEnd<T, columns, pass> end_;
  const unsigned chunks_, tiles_;
  float sums_[columns / 2];
  Packed<T> values_[kFetches], addends_[kFetches];
};

template <class T, unsigned columns, Pass pass>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    pixel_product(Predecessor previous, const __grid_constant__ Product<T> product) {
  await(previous);
  Worker<T, columns, pass>(product).run();
}

template <class T>
class PixelProduct final : public ProductPlan<Product<T>> {
 public:
  PixelProduct(const ConvolutionProblem& problem, int multiprocessors) : ProductPlan<Product<T>>(problem) {
    this->product_.rows = static_cast<unsigned>(problem.batch * problem.height * problem.width);
    this->product_.columns > kNarrow ? choose<2 * kNarrow>(multiprocessors) : choose<kNarrow>(multiprocessors);
  }

 private:
  static constexpr unsigned kNarrow = 64;

  template <unsigned columns>
  void choose(int multiprocessors) {
    ProductPlan<Product<T>>::choose(columns, 2 * kStageBytes<columns> + ProductEnd<T, columns, Pass::stored>::kBytes,
                                    multiprocessors, [](auto pass) { return pixel_product<T, columns, pass.value>; });
  }
};

}  // namespace

bool has_pixel_products() {
  return is_built(pixel_product<__half, 64, Pass::stored>);
}

std::unique_ptr<ConvolutionPlan> make_pixel_product(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.precision == Precision::fp16) return std::make_unique<PixelProduct<__half>>(problem, multiprocessors);
  return std::make_unique<PixelProduct<__nv_bfloat16>>(problem, multiprocessors);
}

}  // namespace annulus::cuda
