#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/operations/parameter.h"

namespace annulus {

// Scaled dot-product self-attention with several heads (Vaswani et al., "Attention is all you need", NIPS 2017, section
// 3.2), between the projections of its input and of its output: {batch, length, 3 width} -> {batch, length, width}. A
// token has its queries, then its keys, then its values, each {heads, width / heads}, as PyTorch's in_proj layers
// compute them. If causal, a token attends only to itself and to those before it.
//
// The matrix of attention weights is not stored (Dao et al., "FlashAttention", NeurIPS 2022): backward computes it
// again from the logarithm of the sum of each row's exponentials.
//
// With dropout, each attention weight is multiplied by a factor of Dropout's mask in training. The second input is then
// Dropout's, and the elements of a sample are its attention weights, {heads, queries, keys}.
struct Attention {
  static constexpr auto kName = "attention";

  std::size_t heads;
  bool causal = false;
  float dropout = 0;         // the rate of attention weights; 0: there is no second input
  std::uint32_t number = 0;  // as in Dropout

  Shape output_shape(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

// Causal attention for texts that are computed token by token, in inference only: {batch, 1, 3 width} and the tokens'
// positions {batch}, int32, -> {batch, 1, width}. The operation keeps the keys and values of all positions before,
// which have been computed since position 0. A position is below `positions`.
struct CachedAttention {
  static constexpr auto kName = "cached attention";

  std::size_t heads, positions;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
