// A 1x1 convolution without stride as a matrix product, for compute capability 9.0, which also does passes of the
// batch norms beside it: {pixels, channels} times the weights {filters, channels} transposed, and in backward {pixels,
// filters} times the weights.
//
// A block multiplies 128 rows at a time by 64 or 128 weight columns, and moves down the matrix. The left
// operand passes through registers, because a batch norm, a residual block's addition and a ReLU are computed on
// the way to shared memory (and stored once, for other readers), and the next chunk's loads are in flight meanwhile.
// The result passes through shared memory, so that a thread then has the same columns in each row: it adds up
// statistics, or in backward applies the ReLU's derivative and adds up the gradient's sums. Each thread adds up rows,
// the block adds up threads, and the last block adds up the blocks, in an order that depends only on the sizes and the
// device.
//
//   chunk i      load -> registers -> batch norm, ReLU -> shared memory -> products
//   chunk i + 1          load ->      registers ...

#include <algorithm>

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/product/pixel_product.h"
#include "kernels/cuda/ops/product/warpgroup.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 2 * kWarpgroup, kBlocksEach = 2;  // for each multiprocessor, all resident
constexpr unsigned kRows = 2 * kWarpgroupRows;                  // in a tile
constexpr unsigned kRowStep = kThreads / kTileVectors, kFetches = kRows / kRowStep;  // a thread's left values
constexpr unsigned kLeftBytes = kRows * kTileRowBytes;

template <class T>
struct Product {
  const T *left, *weights;
  T* output;
  unsigned rows, inner, columns;
  // On the way in: max(0, factor left + offset (+ addend)), also written to `normalized`.
  const float *factor, *offset;
  const T* addend;
  T* normalized;
  // On the way out, in backward: the ReLU was active if factor norm_input + offset is positive, or in
  // Pass::summed_elsewhere, which adds others, norm_output.
  const T *norm_input, *norm_output, *others;
  const float *mean, *inverse;
  // Each column's sums: values and squares, or in backward gradients and their products with (norm_input - mean)
  // inverse. Null if not needed.
  float *sums, *products;
  Sums<2>* partial;    // {stripes, columns}
  unsigned* counters;  // a zero for each column tile
};

// Places in shared memory, in order: two stages of both operands, the result, and each thread's sums.
template <unsigned columns>
struct Shared {
  static constexpr unsigned kRightBytes = columns * kTileRowBytes, kStageBytes = kLeftBytes + kRightBytes;
  static constexpr unsigned kResult = 2 * kStageBytes, kSums = kResult + kRows * columns * 2;
  static constexpr unsigned kBytes = kSums + kThreads * 8 * sizeof(Sums<2>);
};

// A part from the left operand: 64 values in each row, 128 rows.
struct Chunk {
  unsigned tile, number;
};

// What a kernel does: forward with a Forward::Input, or BackwardData::summed or summed_elsewhere.
enum class Pass { stored, normalized, block_end, summed, summed_elsewhere };

// A thread's work.
template <class T, unsigned columns, Pass pass>
class Worker {
 public:
  __device__ explicit Worker(const Product<T>& product)
      : p_(product),
        self_(threadIdx.x),
        first_column_(blockIdx.x * columns),
        chunks_((product.inner + kTileValues - 1) / kTileValues),
        tiles_((product.rows + kRows - 1) / kRows) {}

  __device__ void run() {
    clear_sums();
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
      finish_tile(tile);
    }
    if (p_.sums != nullptr) finish_sums();
  }

 private:
  static constexpr bool kBackward = pass == Pass::summed || pass == Pass::summed_elsewhere;
  static constexpr bool kNormalizes = pass == Pass::normalized || pass == Pass::block_end;
  static constexpr unsigned kColumnVectors = columns / 8, kResultStep = kThreads / kColumnVectors;
  using In = Shared<columns>;

  __device__ Chunk after(const Chunk& chunk) const {
    if (chunk.number + 1 < chunks_) return {chunk.tile, chunk.number + 1};
    return {chunk.tile + gridDim.y, 0};
  }

  __device__ std::byte* left(unsigned stage) const { return shared_memory() + stage * In::kStageBytes; }
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
    if (kNormalizes && channel(chunk) < p_.inner) normalize(chunk);
    for (unsigned i = 0; i < kFetches; ++i)
      *reinterpret_cast<Packed<T>*>(
          left(stage) + tile_offset(self_ / kTileVectors + i * kRowStep, self_ % kTileVectors)) = values_[i];
  }

  __device__ void normalize(const Chunk& chunk) {
    const auto factor = load_floats<8>(p_.factor + channel(chunk)), offset = load_floats<8>(p_.offset + channel(chunk));
    for (unsigned i = 0; i < kFetches; ++i) {
      if (!exists(chunk, i)) continue;
      Vector<T> values = unpacked<T>(values_[i]), added{};
      if constexpr (pass == Pass::block_end) added = unpacked<T>(addends_[i]);
      for (unsigned k = 0; k < 8; ++k) {
        float value = factor.at[k] * values.at[k] + offset.at[k];
        if constexpr (pass == Pass::block_end) value += added.at[k];
        values.at[k] = relu(value);
      }
      values_[i] = packed<T>(values);
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
      const unsigned term = chunk * kTileValues + in_chunk, column = first_column_ + in_tile;
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

  // A result row in shared memory, whose vectors are permuted against bank conflicts.
  __device__ std::byte* result(unsigned row, unsigned vector) const {
    return shared_memory() + In::kResult + row * columns * 2 + (vector ^ row % 8) * 16;
  }

  __device__ void finish_tile(unsigned tile) {
    const unsigned lane = self_ % 32, row = self_ / 32 * 16 + lane / 4;
    for (unsigned j = 0; j < kColumnVectors; ++j)
      for (unsigned h = 0; h < 2; ++h)
        *reinterpret_cast<std::uint32_t*>(result(row + 8 * h, j) + lane % 4 * 4) =
            narrowed<T>(sums_[4 * j + 2 * h], sums_[4 * j + 2 * h + 1]);
    __syncthreads();
    if (first_column_ + own_column() >= p_.columns) return;
    Sums<2> sums[8]{};
    if constexpr (kBackward)
      put_gradient(tile, sums);
    else
      put_values(tile, sums);
    for (unsigned k = 0; k < 8; ++k)
      for (unsigned i = 0; i < 2; ++i) own_sum(2 * k + i) += sums[k].of[i];
  }

  // The first column that the thread has in the tile.
  __device__ unsigned own_column() const {
    return self_ % kColumnVectors * 8;
  }
  // The thread's vector in a tile's row.
  __device__ unsigned output_index(unsigned tile, unsigned row) const {
    return (tile * kRows + row) * (p_.columns / 8) + (first_column_ + own_column()) / 8;
  }
  __device__ Packed<T> own_result(unsigned row) const {
    return *reinterpret_cast<const Packed<T>*>(result(row, self_ % kColumnVectors));
  }

  __device__ void put_values(unsigned tile, Sums<2> (&sums)[8]) {
#pragma unroll 1
    for (unsigned row = self_ / kColumnVectors; row < kRows && tile * kRows + row < p_.rows; row += kResultStep) {
      const Packed<T> values = own_result(row);
      reinterpret_cast<Packed<T>*>(p_.output)[output_index(tile, row)] = values;
      const Vector<T> rounded = unpacked<T>(values);
      for (unsigned k = 0; k < 8; ++k) {
        sums[k].of[0] += rounded.at[k];
        sums[k].of[1] += rounded.at[k] * rounded.at[k];
      }
    }
  }

  __device__ void put_gradient(unsigned tile, Sums<2> (&sums)[8]) {
    constexpr bool kElsewhere = pass == Pass::summed_elsewhere;
    constexpr unsigned kBatch = 2;  // rows whose loads are in flight
    const unsigned column = first_column_ + own_column();
#pragma unroll 1
    for (unsigned first = self_ / kColumnVectors; first < kRows; first += kBatch * kResultStep) {
      Packed<T> inputs[kBatch], outputs[kBatch], others[kBatch];
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned row = first + i * kResultStep;
        if (tile * kRows + row >= p_.rows) continue;
        inputs[i] = fetch(p_.norm_input, output_index(tile, row));
        if constexpr (kElsewhere) {
          outputs[i] = fetch(p_.norm_output, output_index(tile, row));
          others[i] = fetch(p_.others, output_index(tile, row));
        }
      }
      const auto mean = load_floats<8>(p_.mean + column);
      Floats<8> factor{}, offset{};
      if constexpr (!kElsewhere) {
        factor = load_floats<8>(p_.factor + column);
        offset = load_floats<8>(p_.offset + column);
      }
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned row = first + i * kResultStep;
        if (tile * kRows + row >= p_.rows) continue;
        Vector<T> gradient = unpacked<T>(own_result(row)), in = unpacked<T>(inputs[i]), out{}, more{};
        if constexpr (kElsewhere) {
          out = unpacked<T>(outputs[i]);
          more = unpacked<T>(others[i]);
        }
        for (unsigned k = 0; k < 8; ++k) {
          const float activity = kElsewhere ? out.at[k] : factor.at[k] * in.at[k] + offset.at[k];
          gradient.at[k] = activity > 0 ? gradient.at[k] + more.at[k] : 0;
          sums[k].of[0] += gradient.at[k];
          sums[k].of[1] += gradient.at[k] * (in.at[k] - mean.at[k]);
        }
        store(gradient, p_.output, output_index(tile, row));
      }
    }
  }

  // The thread's sums over rows, in shared memory, because registers are scarce.
  __device__ float* all_sums() const {
    return reinterpret_cast<float*>(shared_memory() + In::kSums);
  }
  __device__ float& own_sum(unsigned i) const {
    return all_sums()[i * kThreads + self_];
  }
  __device__ void clear_sums() {
    for (unsigned i = 0; i < 16; ++i) own_sum(i) = 0;
  }

  // Adds up the block's threads, and in the last block all blocks.
  __device__ void finish_sums() {
    __syncthreads();
    if (self_ < columns && first_column_ + self_ < p_.columns) {
      Sums<2> sum{};
      for (unsigned row = 0; row < kResultStep; ++row)
        for (unsigned i = 0; i < 2; ++i)
          sum.of[i] += all_sums()[(self_ % 8 * 2 + i) * kThreads + row * kColumnVectors + self_ / 8];
      p_.partial[std::size_t{blockIdx.y} * p_.columns + first_column_ + self_] = sum;
    }
    if (is_last()) finish_stripes();
  }

  __device__ bool is_last() const {
    int last = 0;
    __syncthreads();
    if (self_ == 0) {
      __threadfence();
      last = atomicInc(p_.counters + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;
      __threadfence();
    }
    return __syncthreads_or(last) != 0;
  }

  // A few threads for each column add up every few stripes.
  __device__ void finish_stripes() {
    constexpr unsigned kGroups = kThreads / columns, kBatch = 8;  // loads in flight
    const unsigned column = first_column_ + self_ % columns;
    Sums<2> sum{};
    if (column < p_.columns)
      for (unsigned first = self_ / columns; first < gridDim.y; first += kBatch * kGroups) {
        Sums<2> stored[kBatch]{};
        for (unsigned k = 0; k < kBatch; ++k)
          if (const unsigned stripe = first + k * kGroups; stripe < gridDim.y)
            stored[k] = p_.partial[std::size_t{stripe} * p_.columns + column];
        for (unsigned k = 0; k < kBatch; ++k) sum = combined(sum, stored[k]);
      }
    own_sum(0) = sum.of[0];
    own_sum(1) = sum.of[1];
    __syncthreads();
    if (self_ >= columns || column >= p_.columns) return;
    for (unsigned group = 1; group < kGroups; ++group)
      for (unsigned i = 0; i < 2; ++i) sum.of[i] += all_sums()[i * kThreads + group * columns + self_];
    p_.sums[column] = sum.of[0];
    p_.products[column] = kBackward ? p_.inverse[column] * sum.of[1] : sum.of[1];
  }

  const Product<T>& p_;
  const unsigned self_, first_column_, chunks_, tiles_;
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
class PixelProduct final : public ConvolutionPlan {
 public:
  PixelProduct(const ConvolutionProblem& problem, int multiprocessors) : problem_(problem) {
    product_.rows = static_cast<unsigned>(problem.batch * problem.height * problem.width);
    product_.inner = static_cast<unsigned>(problem.is<Forward>() ? problem.channels : problem.filters);
    product_.columns = static_cast<unsigned>(problem.is<Forward>() ? problem.filters : problem.channels);
    product_.columns > kNarrow ? choose<2 * kNarrow>() : choose<kNarrow>();
    check(cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes_)));
    const unsigned tiles = (product_.rows + kRows - 1) / kRows;
    grid_.y = std::clamp(kBlocksEach * static_cast<unsigned>(multiprocessors) / grid_.x, 1u, tiles);
    counters_ = allocate_device(grid_.x * sizeof(unsigned));
    product_.counters = data<unsigned>(counters_.view());
  }

  std::size_t workspace_bytes() const override {
    const bool sums = problem_.has_statistics() || problem_.sums_gradient();
    return sums ? std::size_t{grid_.y} * product_.columns * sizeof(Sums<2>) : 0;
  }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override {
    const auto values = [](void* address) { return static_cast<T*>(address); };
    Product<T> p = product_;
    p.weights = values(operands.weights);
    p.factor = static_cast<const float*>(operands.scale);
    p.offset = static_cast<const float*>(operands.shift);
    p.norm_input = values(operands.norm_input);
    p.partial = static_cast<Sums<2>*>(workspace);
    if (problem_.is<Forward>()) {
      p.left = values(problem_.normalizes() || problem_.ends_block() ? operands.norm_input : operands.input);
      p.addend = values(operands.addend);
      p.normalized = values(operands.input);
      p.output = values(operands.output);
      p.sums = problem_.has_statistics() ? static_cast<float*>(operands.sums) : nullptr;
      p.products = static_cast<float*>(operands.squares);
    } else {
      p.left = values(operands.output);
      p.output = values(operands.input);
      p.mean = operands.norm.mean;
      p.inverse = operands.norm.inverse;
      p.sums = operands.norm.sum;
      p.products = operands.norm.normalized_sum;
      if (problem_.adds_elsewhere()) {
        p.norm_output = values(operands.norm_output);
        p.others = values(operands.gradient_of_others);
      }
    }
    launch(kernel_, grid_, Block(kThreads, shared_bytes_), stream, p);
  }

 private:
  static constexpr unsigned kNarrow = 64;

  template <unsigned columns>
  void choose() {
    grid_.x = (product_.columns + columns - 1) / columns;
    shared_bytes_ = Shared<columns>::kBytes;
    kernel_ = problem_.adds_elsewhere()  ? pixel_product<T, columns, Pass::summed_elsewhere>
              : problem_.sums_gradient() ? pixel_product<T, columns, Pass::summed>
              : problem_.ends_block()    ? pixel_product<T, columns, Pass::block_end>
              : problem_.normalizes()    ? pixel_product<T, columns, Pass::normalized>
                                         : pixel_product<T, columns, Pass::stored>;
  }

  ConvolutionProblem problem_;
  Product<T> product_{};
  void (*kernel_)(Predecessor, const Product<T>) = nullptr;
  dim3 grid_{1, 1};
  std::size_t shared_bytes_ = 0;
  Buffer counters_;
};

}  // namespace

bool has_pixel_products() {
  cudaFuncAttributes attributes{};
  const bool has = cudaFuncGetAttributes(&attributes, pixel_product<__half, 64, Pass::stored>) == cudaSuccess;
  cudaGetLastError();  // or the next call to cudaGetLastError() would return it
  return has;
}

std::unique_ptr<ConvolutionPlan> make_pixel_product(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.precision == Precision::fp16) return std::make_unique<PixelProduct<__half>>(problem, multiprocessors);
  return std::make_unique<PixelProduct<__nv_bfloat16>>(problem, multiprocessors);
}

}  // namespace annulus::cuda
