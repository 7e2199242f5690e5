#include "kernels/cuda/ops/loops/add_hash.h"

#include "kernels/base/array_hash.h"
#include "kernels/cuda/ops/loops/vectors.h"

namespace annulus::cuda {
namespace {

constexpr unsigned kThreads = 256;

using Sum = unsigned long long;  // what atomicAdd() takes

struct Sums64 {
  Sum words, products;
};

__device__ void add_word(Sum word, std::size_t place, Sums64& sums) {
  const Sum mixed = word ^ (place + 1) * ArrayHash::kKey;
  sums.words += word;
  sums.products += (mixed & 0xffffffffu) * (mixed >> 32);
}

__device__ Sum pair_of(float lower, float upper) {
  return __float_as_uint(lower) | Sum{__float_as_uint(upper)} << 32;
}

__device__ Sum warp_sum(Sum value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// Integers are added, so their order does not matter.
__global__ void add_words(Predecessor previous, const float* from, std::size_t count, Sums64* to) {
  await(previous);
  Sums64 sums{};
  for (std::size_t i = grid_thread(); i < count / 4; i += grid_threads()) {
    const Packed<float> four = fetch(from, i);
    add_word(pair_of(four.at[0], four.at[1]), 2 * i, sums);
    add_word(pair_of(four.at[2], four.at[3]), 2 * i + 1, sums);
  }
  if (grid_thread() == 0)
    for (std::size_t i = count / 4 * 4; i < count; i += 2)
      add_word(pair_of(from[i], i + 1 < count ? from[i + 1] : 0), i / 2, sums);
  const Sum words = warp_sum(sums.words), products = warp_sum(sums.products);
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(&to->words, words);
  atomicAdd(&to->products, products);
}

}  // namespace

void add_hash(DeviceView from, DeviceView to, const Context& context) {
  const std::size_t count = from.bytes / sizeof(float);
  if (count > 0)
    launch(add_words, blocks_for(count / 4, kThreads, context.multiprocessors), kThreads, context.lane.get(),
           data<float>(from), count, data<Sums64>(to));
}

}  // namespace annulus::cuda
