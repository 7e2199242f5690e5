#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/operations/parameter.h"

namespace annulus {

// Scaled dot-product self-attention with several heads (Vaswani et al., "Attention is all you need", NIPS 2017, section
// 3.2), between the input's and the output's projections: {batch, length, 3 width} -> {batch, length, width}. A token
// has its queries, then its keys, then its values, each {heads, width / heads}, as PyTorch's in_proj layers compute
// them. If causal, a token attends only to itself and to earlier tokens.
//
// The attention-weight matrix is not stored (Dao et al., "FlashAttention", NeurIPS 2022): backward computes it again
// from each row's log-sum-exp.
//
// With dropout, training multiplies each attention weight by a factor from Dropout's mask. The second input is then
// Dropout's, and a sample's elements are the attention weights, {heads, queries, keys}.
struct Attention {
  static constexpr auto kName = "attention";

  std::size_t heads;
  bool causal = false;
  float dropout = 0;         // the rate for attention weights; 0: there is no second input
  std::uint32_t number = 0;  // as in Dropout

  Shape output_shape(const Shapes& inputs) const;
  std::uint64_t flops(const Shapes& inputs) const;
};

// Causal attention for texts computed token by token, in inference only: {batch, 1, 3 width} and the tokens' positions
// {batch}, int32, -> {batch, 1, width}. The operation keeps the keys and values at all earlier positions, which have
// been computed since position 0. A position is below `positions`.
struct CachedAttention {
  static constexpr auto kName = "cached attention";

  std::size_t heads, positions;

  Shape output_shape(const Shapes& inputs) const;
};

}  // namespace annulus
