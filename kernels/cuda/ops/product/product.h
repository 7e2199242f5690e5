#pragma once

#include <algorithm>

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/product/warpgroup.h"
#include "kernels/cuda/vendor/convolution_plan.h"

// Shared by our products, whatever rows they multiply: {rows, terms} times the weights, with the passes that batch
// norms beside the convolution need.
//
// A batch norm, a residual block's addition and a ReLU are computed on the way to shared memory (and stored once, for
// other readers). The result passes through shared memory, so that a thread then has the same columns in each row: it
// adds up statistics, or in backward applies the ReLU's derivative and adds up the gradient's sums. Each thread adds up
// rows, the block adds up threads, and the last block adds up the blocks, in an order that depends only on the sizes
// and the device.
namespace annulus::cuda {

constexpr unsigned kThreads = 2 * kWarpgroup, kBlocksEach = 2;  // for each multiprocessor, all resident
constexpr unsigned kRows = 2 * kWarpgroupRows;                  // in a tile, 16 for each warp

template <class T>
struct Product {
  using Value = T;

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

// What a kernel does: forward with a Forward::Input, or BackwardData::summed or summed_elsewhere.
enum class Pass { stored, normalized, block_end, summed, summed_elsewhere };

template <Pass pass>
using PassConstant = std::integral_constant<Pass, pass>;

constexpr bool is_backward(Pass pass) {
  return pass == Pass::summed || pass == Pass::summed_elsewhere;
}
constexpr bool computes_input(Pass pass) {
  return pass == Pass::normalized || pass == Pass::block_end;
}

// Returns the input that a batch norm, a residual block's addition if `pass` ends a block, and a ReLU compute.
template <class T, Pass pass>
__device__ Packed<T> normalized(const Packed<T>& stored, const Packed<T>& addend, const Floats<8>& factor,
                                const Floats<8>& offset) {
  Vector<T> values = unpacked<T>(stored), added{};
  if constexpr (pass == Pass::block_end) added = unpacked<T>(addend);
  for (unsigned k = 0; k < 8; ++k) {
    float value = factor.at[k] * values.at[k] + offset.at[k];
    if constexpr (pass == Pass::block_end) value += added.at[k];
    values.at[k] = relu(value);
  }
  return packed<T>(values);
}

// Stores a block's results and sums. A block has tiles of kRows by `columns`; blockIdx.x counts tiles along a row,
// blockIdx.y along the matrix.
template <class T, unsigned columns, Pass pass>
class ProductEnd {
 public:
  static constexpr unsigned kResultBytes = kRows * columns * sizeof(T);
  static constexpr unsigned kBytes = kResultBytes + kThreads * 8 * sizeof(Sums<2>);  // in shared memory

  __device__ ProductEnd(const Product<T>& product, std::byte* shared)
      : p_(product), self_(threadIdx.x), first_column_(blockIdx.x * columns), shared_(shared) {}

  __device__ unsigned first_column() const { return first_column_; }

  __device__ void clear_sums() {
    for (unsigned i = 0; i < 16; ++i) own_sum(i) = 0;
  }

  // `results`: the thread's part, as multiply() adds to it (warpgroup.h, warp.h). Has a barrier.
  __device__ void finish_tile(unsigned tile, const float (&results)[columns / 2]) {
    const unsigned lane = self_ % 32, row = self_ / 32 * 16 + lane / 4;
    for (unsigned j = 0; j < kColumnVectors; ++j)
      for (unsigned h = 0; h < 2; ++h)
        *reinterpret_cast<std::uint32_t*>(result(row + 8 * h, j) + lane % 4 * 4) =
            narrowed<T>(results[4 * j + 2 * h], results[4 * j + 2 * h + 1]);
    __syncthreads();
    if (first_column_ + own_column() >= p_.columns) return;
    Sums<2> sums[8]{};
    if constexpr (is_backward(pass))
      put_gradient(tile, sums);
    else
      put_values(tile, sums);
    for (unsigned k = 0; k < 8; ++k)
      for (unsigned i = 0; i < 2; ++i) own_sum(2 * k + i) += sums[k].of[i];
  }

  // To be called after the last tile. Adds up the block's threads, and in the last block all blocks.
  __device__ void finish_sums() {
    if (p_.sums == nullptr) return;
    __syncthreads();
    const unsigned own = self_ % columns;
    Sums<2> sum{};
    for (unsigned row = self_ / columns; row < kResultStep; row += kGroups)
      for (unsigned i = 0; i < 2; ++i)
        sum.of[i] += all_sums()[(own % 8 * 2 + i) * kThreads + row * kColumnVectors + own / 8];
    sum = sum_of_groups(sum);
    if (has_column()) p_.partial[std::size_t{blockIdx.y} * p_.columns + first_column_ + self_] = sum;
    if (is_last()) finish_stripes();
  }

 private:
  static constexpr unsigned kColumnVectors = columns / 8, kResultStep = kThreads / kColumnVectors;
  static constexpr unsigned kSwizzled = kColumnVectors < 8 ? kColumnVectors : 8;
  static constexpr unsigned kGroups = kThreads / columns;  // each has threads for all columns

  // A result row in shared memory. Vectors are permuted against bank conflicts.
  __device__ std::byte* result(unsigned row, unsigned vector) const {
    return shared_ + row * columns * sizeof(T) + (vector ^ row % kSwizzled) * 16;
  }

  // The first column that the thread has in the tile.
  __device__ unsigned own_column() const { return self_ % kColumnVectors * 8; }
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
    constexpr unsigned kBatch = kResultStep < kRows ? 2 : 1;  // rows whose loads are in flight
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
    return reinterpret_cast<float*>(shared_ + kResultBytes);
  }
  __device__ float& own_sum(unsigned i) const {
    return all_sums()[i * kThreads + self_];
  }

  // Whether the thread is the first group's for an existing column.
  __device__ bool has_column() const {
    return self_ < columns && first_column_ + self_ < p_.columns;
  }

  // Adds up the groups' sums for the thread's column. Valid in the first group.
  __device__ Sums<2> sum_of_groups(Sums<2> sum) {
    __syncthreads();
    for (unsigned i = 0; i < 2; ++i) own_sum(i) = sum.of[i];
    __syncthreads();
    for (unsigned group = 1; self_ < columns && group < kGroups; ++group)
      for (unsigned i = 0; i < 2; ++i) sum.of[i] += all_sums()[i * kThreads + group * columns + self_];
    return sum;
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

  // Each group adds up every few stripes.
  __device__ void finish_stripes() {
    constexpr unsigned kBatch = 8;  // loads in flight
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
    sum = sum_of_groups(sum);
    if (!has_column()) return;
    p_.sums[column] = sum.of[0];
    p_.products[column] = is_backward(pass) ? p_.inverse[column] * sum.of[1] : sum.of[1];
  }

  const Product<T>& p_;
  const unsigned self_, first_column_;
  std::byte* const shared_;
};

// ---- host code

// Whether a kernel was built for the current device.
template <class Kernel>
bool is_built(Kernel kernel) {
  cudaFuncAttributes attributes{};
  const bool built = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess;
  cudaGetLastError();  // or the next call to cudaGetLastError() would return it
  return built;
}

// A plan for a kernel that takes the operands, a Product. A derived class chooses kernel and grid.
template <class Operands>
class ProductPlan : public ConvolutionPlan {
 public:
  std::size_t workspace_bytes() const override {
    const bool sums = problem_.has_statistics() || problem_.sums_gradient();
    return sums ? std::size_t{grid_.y} * product_.columns * sizeof(Sums<2>) : 0;
  }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override {
    using T = typename Operands::Value;
    const auto values = [](void* address) { return static_cast<T*>(address); };
    Operands p = product_;
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

 protected:
  using Kernel = void (*)(Predecessor, const Operands);

  explicit ProductPlan(const ConvolutionProblem& problem) : problem_(problem) {
    product_.inner = static_cast<unsigned>(problem.is<Forward>() ? problem.channels : problem.filters);
    product_.columns = static_cast<unsigned>(problem.is<Forward>() ? problem.filters : problem.channels);
  }

  // `kernel_of`: returns the kernel for a PassConstant.
  template <class KernelOf>
  void choose(unsigned columns, std::size_t shared_bytes, int multiprocessors, const KernelOf& kernel_of) {
    kernel_ = problem_.adds_elsewhere()  ? kernel_of(PassConstant<Pass::summed_elsewhere>())
              : problem_.sums_gradient() ? kernel_of(PassConstant<Pass::summed>())
              : problem_.ends_block()    ? kernel_of(PassConstant<Pass::block_end>())
              : problem_.normalizes()    ? kernel_of(PassConstant<Pass::normalized>())
                                         : kernel_of(PassConstant<Pass::stored>());
    check(cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
    shared_bytes_ = shared_bytes;
    grid_.x = (product_.columns + columns - 1) / columns;
    const unsigned tiles = (product_.rows + kRows - 1) / kRows;
    grid_.y = std::clamp(kBlocksEach * static_cast<unsigned>(multiprocessors) / grid_.x, 1u, tiles);
    counters_ = allocate_device(grid_.x * sizeof(unsigned));
    product_.counters = data<unsigned>(counters_.view());
  }

  ConvolutionProblem problem_;
  Operands product_{};

 private:
  Kernel kernel_ = nullptr;
  dim3 grid_{1, 1};
  std::size_t shared_bytes_ = 0;
  Buffer counters_;
};

}  // namespace annulus::cuda
