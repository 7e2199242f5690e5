#pragma once

#include <cstddef>
#include <vector>

#include "kernels/operations/parameter.h"

namespace annulus {

// Softmax cross-entropy over logits {batch, classes} and labels, {batch} (int32) or {batch, 3} (each a MixedLabel,
// whose loss is the mean over the two labels, weighted by their shares; hits count for the first label). Output {3},
// float32: the samples' summed losses, the number of samples whose label has the largest logit, and the number of
// samples whose label is among the kTop largest. Among equal logits the first ranks higher; NaN ranks above any number.
// A network's last operation.
//
// With label smoothing s, a sample's loss is (1 - s) times the label's loss plus s times the mean loss over all classes
// (Szegedy et al., "Rethinking the Inception architecture", 2015, section 7). In inference, s is 0.
//
// With class weights, a sample's loss is multiplied by the label's weight, a mixed label's losses by each label's. The
// mean is over the number of samples, not over their weights. In inference, all weights are 1.
struct SoftmaxCrossEntropy {
  static constexpr auto kName = "softmax cross-entropy";
  static constexpr std::size_t kTop = 5;

  float smoothing = 0;
  std::vector<float> class_weights{};  // per class, above 0; empty: all 1

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Binary cross-entropy: every class is a separate decision. Operands, target probabilities, class weights, output and
// hits are as in softmax cross-entropy. A sample's loss is the mean over the classes of -t log(p) - (1 - t) log(1 - p),
// where p is the logit's sigmoid and t the target probability, as in Wightman, Touvron, Jegou, "ResNet strikes back",
// 2021.
struct BinaryCrossEntropy {
  static constexpr auto kName = "binary cross-entropy";

  float smoothing = 0;
  std::vector<float> class_weights{};

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Binary cross-entropy for samples that may belong to any number of classes: logits {batch, classes} and targets
// {batch, classes}, float32, each 0 or 1. A sample's loss is the mean over the classes, as in PyTorch's
// BCEWithLogitsLoss. Output {2}, float32: the samples' summed losses, and the number of samples with all classes
// predicted correctly: a class is predicted if its logit is above 0. A network's last operation.
struct MultiLabelCrossEntropy {
  static constexpr auto kName = "multi-label cross-entropy";

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

// Mean squared error between values {batch, width} and targets {batch, width}, float32: a sample's loss is the mean
// over its values, as in PyTorch's MSELoss. Output {2}, float32: the samples' summed losses, and their summed mean
// absolute errors. A network's last operation.
struct MeanSquaredError {
  static constexpr auto kName = "mean squared error";

  Shape output_shape(const Shapes& inputs) const;
  std::vector<ParameterDeclaration> parameters(const Shapes& inputs) const;
};

}  // namespace annulus
