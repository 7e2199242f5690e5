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
//
// With class weights, a sample's loss is multiplied by the weight of its label, that of a mixed label by label. The
// mean is over the number of samples, not over their weights. In inference, all weights are 1.
struct SoftmaxCrossEntropy {
  static constexpr auto kName = "softmax cross-entropy";
  static constexpr std::size_t kTop = 5;

  float smoothing = 0;
  std::vector<float> class_weights{};  // one for each class, above 0; empty: all 1

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Binary cross-entropy: every class is a decision of its own. Operands, target probabilities, class weights, output and
// hits are those of softmax cross-entropy. A sample's loss is the mean over the classes of -t log(p) - (1 - t) log(1 -
// p), where p is the sigmoid of the logit and t the target probability, as in Wightman, Touvron, Jegou, "ResNet strikes
// back", 2021.
struct BinaryCrossEntropy {
  static constexpr auto kName = "binary cross-entropy";

  float smoothing = 0;
  std::vector<float> class_weights{};

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Binary cross-entropy for samples that may belong to any number of classes: logits {batch, classes} and targets
// {batch, classes}, float32, each 0 or 1. A sample's loss is the mean over the classes, as in PyTorch's
// BCEWithLogitsLoss. Output {2}, float32: the sum of the samples' losses, and the number of samples all of whose
// classes are predicted correctly: a class is predicted if its logit is above 0. The last operation of a network.
struct MultiLabelCrossEntropy {
  static constexpr auto kName = "multi-label cross-entropy";

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Mean squared error of values {batch, width} against targets {batch, width}, float32: a sample's loss is the mean over
// its values, as in PyTorch's MSELoss. Output {2}, float32: the sum of the samples' losses, and the sum of their mean
// absolute errors. The last operation of a network.
struct MeanSquaredError {
  static constexpr auto kName = "mean squared error";

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

}  // namespace annulus
