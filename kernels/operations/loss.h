#pragma once

#include <cstddef>
#include <vector>

#include "kernels/operations/parameter.h"

namespace annulus {

// Softmax cross-entropy over logits {batch, classes} and labels, {batch} (int32) or {batch, 3} (each a MixedLabel,
// whose loss is the mean of those of its two labels, weighted by their shares; hits count for the first one). Output
// {3}, float32: the sum of the samples' losses, the number of samples whose label has the largest logit, and the number
// of samples whose label is among the kTop largest. Of equal logits the first one ranks higher; NaN ranks above any
// number. The last operation of a network.
//
// With label smoothing s, a sample's loss is (1 - s) times its label's loss plus s times the mean of all classes'
// losses (Szegedy et al., "Rethinking the Inception architecture", 2015, section 7). In inference, s is 0.
struct SoftmaxCrossEntropy {
  static constexpr auto kName = "softmax cross-entropy";
  static constexpr std::size_t kTop = 5;

  float smoothing = 0;

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

}  // namespace annulus
