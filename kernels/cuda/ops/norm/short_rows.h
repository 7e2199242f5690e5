#pragma once

#include "kernels/cuda/ops/loops/column_sums.h"
#include "kernels/cuda/ops/loops/input_gradient.h"
#include "kernels/cuda/ops/loops/row_warps.h"

// Layer norm of rows that fit into the registers of a warp, so that each value is read once. Forward also computes the
// residual addition before the norm; backward also sums the parameters' gradients.
namespace annulus::cuda {

constexpr int kShortRowBlocks = 3;  // in backward, for each multiprocessor: each stores all channels' sums

// A row's mean and factor for backward; the factor is 1 / sqrt(variance + epsilon).
struct RowStatistics {
  float mean, factor;
};

// What a layer norm does in all rows.
struct NormRule {
  const float *scale, *shift;  // `shift` is null if there is none
  float size;                  // elements in a row without padding
  float epsilon;
  bool centred;
};

// The input of a layer norm: an array, or the sum of two arrays, rounded to the type in which the sum is stored.
template <class T>
struct NormInput {
  const T *values, *addend = nullptr;
  T* sum = nullptr;

  __device__ Vector<T> at(std::size_t index) const {
    Vector<T> x = load(values, index);
    if (addend == nullptr) return x;
    const Vector<T> more = load(addend, index);
    for (unsigned k = 0; k < kLanes<T>; ++k) x.at[k] += more.at[k];
    store(x, sum, index);
    return unpacked<T>(packed<T>(x));
  }
};

// Calls body(j, vector, used) for the thread's j-th vector in a row of at most `each` vectors for each thread.
template <class T, unsigned each, class Body>
__device__ void for_each_own(const Rows& rows, const Body& body) {
#pragma unroll
  for (unsigned j = 0; j < each; ++j)
    if (const unsigned vector = threadIdx.x + j * Rows::kWarp; vector < rows.vectors) {
      const unsigned first = vector * kLanes<T> % rows.channels_padded;
      body(j, vector, rows.channels - first < kLanes<T> ? rows.channels - first : kLanes<T>);
    }
}

// `statistics` is null in inference.
template <class T, unsigned each>
__global__ void norm_short_rows(Predecessor previous, Rows rows, NormInput<T> input, NormRule rule,
                                RowStatistics* statistics, T* output) {
  await(previous);
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    Vector<T> x[each];
    float sum = 0, squares = 0;
    for_each_own<T, each>(rows, [&](unsigned j, unsigned vector, unsigned) {
      x[j] = input.at(begin + vector);
      for (unsigned k = 0; k < kLanes<T>; ++k) sum += x[j].at[k];
    });
    const float mean = rule.centred ? warp_sum(sum) / rule.size : 0;
    for_each_own<T, each>(rows, [&](unsigned j, unsigned, unsigned used) {
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        x[j].at[k] -= mean;
        squares += k < used ? x[j].at[k] * x[j].at[k] : 0;
      }
    });
    const float factor = 1 / sqrtf(warp_sum(squares) / rule.size + rule.epsilon);
    // Padding has scale 0 and shift 0.
    for_each_own<T, each>(rows, [&](unsigned j, unsigned vector, unsigned) {
      const Vector<T> by = load_floats<kLanes<T>>(rule.scale + vector * kLanes<T>);
      Vector<T> more{};
      if (rule.shift != nullptr) more = load_floats<kLanes<T>>(rule.shift + vector * kLanes<T>);
      for (unsigned k = 0; k < kLanes<T>; ++k) more.at[k] += x[j].at[k] * factor * by.at[k];
      store(more, output, begin + vector);
    });
    if (statistics != nullptr && threadIdx.x == 0) statistics[row] = {mean, factor};
  });
}

// Adds up the sums that the block's warps have, and stores them in `partial`: {blocks, vectors x lanes}.
template <class T, unsigned each>
__device__ void store_warp_sums(const Rows& rows, const Sums<2> (&sums)[each][kLanes<T>], Sums<2>* partial) {
  constexpr unsigned kRow = Rows::kWarp * kLanes<T>, kThreads = Rows::kWarp * Rows::kWarps;
  __shared__ Sums<2> shared[Rows::kWarps][kRow];
  const unsigned channels = rows.vectors * kLanes<T>;
#pragma unroll
  for (unsigned j = 0; j < each; ++j) {
    for (unsigned k = 0; k < kLanes<T>; ++k) shared[threadIdx.y][threadIdx.x * kLanes<T> + k] = sums[j][k];
    __syncthreads();
    for (unsigned i = threadIdx.y * Rows::kWarp + threadIdx.x; i < kRow; i += kThreads) {
      Sums<2> sum = shared[0][i];
      for (unsigned warp = 1; warp < Rows::kWarps; ++warp) sum = combined(sum, shared[warp][i]);
      if (j * kRow + i < channels) partial[std::size_t{blockIdx.x} * channels + j * kRow + i] = sum;
    }
    __syncthreads();
  }
}

// With n = (x - mean) factor and g = dy scale: dx = factor (g - mean(g) - n mean(g n)). If not centred, there is no
// mean(g). The parameters' gradients are the sums of dy n and dy over all rows.
template <class T, unsigned each>
__global__ void __launch_bounds__(Rows::kWarp* Rows::kWarps, kShortRowBlocks)
    differentiate_short_rows(Predecessor previous, Rows rows, const T* input, NormRule rule,
                             const RowStatistics* statistics, const T* output_gradient, InputGradient<T> to,
                             Sums<2>* partial) {
  await(previous);
  Sums<2> sums[each][kLanes<T>]{};
  rows.for_each([&](std::size_t row) {
    const std::size_t begin = row * rows.vectors;
    const auto [mean, factor] = statistics[row];
    Packed<T> inputs[each], gradients[each], there[each];
    for_each_own<T, each>(rows, [&](unsigned j, unsigned vector, unsigned) {
      inputs[j] = fetch(input, begin + vector);
      gradients[j] = fetch(output_gradient, begin + vector);
      there[j] = to.there(begin + vector);
    });
    const auto n = [&](const Vector<T>& x, unsigned k) { return (x.at[k] - mean) * factor; };
    float sum = 0, products = 0;
    for_each_own<T, each>(rows, [&](unsigned j, unsigned vector, unsigned) {
      const Vector<T> x = unpacked<T>(inputs[j]), dy = unpacked<T>(gradients[j]);
      const Vector<T> by = load_floats<kLanes<T>>(rule.scale + vector * kLanes<T>);
      for (unsigned k = 0; k < kLanes<T>; ++k) {
        sum += dy.at[k] * by.at[k];
        products += dy.at[k] * by.at[k] * n(x, k);
        sums[j][k].of[0] += dy.at[k] * n(x, k);
        sums[j][k].of[1] += dy.at[k];
      }
    });
    const float a = rule.centred ? warp_sum(sum) / rule.size : 0, b = warp_sum(products) / rule.size;
    for_each_own<T, each>(rows, [&](unsigned j, unsigned vector, unsigned used) {
      const Vector<T> x = unpacked<T>(inputs[j]), dy = unpacked<T>(gradients[j]);
      Vector<T> g = load_floats<kLanes<T>>(rule.scale + vector * kLanes<T>);
      for (unsigned k = 0; k < kLanes<T>; ++k) g.at[k] = k < used ? factor * (dy.at[k] * g.at[k] - a - n(x, k) * b) : 0;
      to.put(g, begin + vector, there[j]);
    });
  });
  store_warp_sums<T, each>(rows, sums, partial);
}

inline bool are_short(const Rows& rows) {
  return rows.vectors <= 4 * Rows::kWarp;
}

// Calls body.template operator()<each>(). REQUIRES: are_short(rows).
template <class Body>
void for_short_rows(const Rows& rows, const Body& body) {
  switch ((rows.vectors + Rows::kWarp - 1) / Rows::kWarp) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    default:
      return body.template operator()<4>();
  }
}

}  // namespace annulus::cuda
