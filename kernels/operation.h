#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/extent.h"
#include "kernels/base/tensor.h"

namespace annulus {

// The operations a network is made of, as plain data. Each takes its inputs' shapes and says its output's shape and
// its parameters; how it is computed is a device's matter (kernels/device.h).

// Raw pixels {batch, height, width, channels} (uint8) -> {batch, channels, height, width} (float32),
// (pixel / 255 - mean) / deviation for each channel. The first operation of a network.
struct ImageInput {
  std::vector<float> mean;
  std::vector<float> deviation;
};

// Output {batch, channels, ...}. With relu, the output is max(0, .).
struct Convolution {
  std::size_t channels;
  Extent kernel;
  std::size_t stride = 1;
  Extent padding = 0;
  bool bias = true;
  bool relu = false;
  float deviation = 0;         // of the weights' first values; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // whether the input's gradient may be wanted; else nothing is planned for it
};

// A fully connected layer over everything but the batch: output {batch, units}. With relu, max(0, .).
struct Dense {
  std::size_t units;
  bool relu = false;
  float deviation = 0;         // of the weights' first values; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // likewise
};

// With relu, the maximum of a window and 0: a ReLU before or after it, which come to the same. REQUIRES: padding is at
// most kernel / 2; output_shape() throws Error otherwise.
struct MaxPool {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding = 0;
  bool relu = false;
};

// The mean over each window, in which the border's pixels count as zeros.
struct AveragePool {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding = 0;
};

// Means over the parts of an image, to an output of `size` whatever the input's is: row y of h is the mean over the
// input's rows from floor(y H / h) on, before ceil((y + 1) H / h), so that parts overlap where h does not divide H, and
// repeat where it is larger. Columns likewise. {1} is the mean over each channel's pixels.
struct AdaptiveAveragePool {
  Extent size;
};

// Ioffe and Szegedy, "Batch normalization", ICML 2015. Trains with the statistics of the rank's own batch;
// synchronized, with those of the batches of all ranks, as if they were one. With add, a second input of the output's
// shape is added to what is normalized; with relu, max(0, .) of that.
struct BatchNorm {
  float epsilon = 1e-5f;
  bool add = false;
  bool relu = false;
  bool synchronized = false;
  float initial_scale = 1;
};

struct Relu {};

// The sum of two inputs of one shape.
struct Add {};

// Any number of images of one height and width, or of vectors, as one with the channels of all, in their order.
struct Concat {};

// Srivastava et al., "Dropout", JMLR 2014: in training, zero with probability `rate`, else 1 / (1 - rate) times the
// input; in inference, the input. The second input is {batch} (int32), a random key of each sample in this epoch:
// dropout_mask.h makes the mask of it, of the element's place in the sample and of `number`, so that it depends neither
// on the rank nor on the batch. Dropouts of one network want different numbers.
struct Dropout {
  float rate;
  std::uint32_t number = 0;
};

// Softmax cross-entropy over logits {batch, classes} and labels {batch} (int32). Output {3}, float32: the sum of the
// samples' losses, the number of samples whose largest logit is their label's, and of those where it is among the
// largest kTop. Of equal logits the first is the larger; one that is not a number is larger than any. The last
// operation of a network.
//
// With smoothing s, a sample's loss is (1 - s) that of its label plus s times the mean of that of every class (Szegedy
// et al., "Rethinking the Inception architecture", 2015, section 7). In inference it is 0.
struct SoftmaxCrossEntropy {
  static constexpr std::size_t kTop = 5;
  float smoothing = 0;
};

using Operation = std::variant<ImageInput, Convolution, Dense, MaxPool, AveragePool, AdaptiveAveragePool, BatchNorm,
                               Relu, Add, Concat, Dropout, SoftmaxCrossEntropy>;

// What becomes of a parameter in a step. Every parameter has a slot in the gradient arena that is summed over all
// ranks with each rank's share weighted by 1 / global batch, so whatever a slot holds comes out as a mean over the
// global batch, the same to the bit on every rank.
enum class Role {
  weight,     // updated by the optimizer, with weight decay
  offset,     // updated by the optimizer, without weight decay: biases, batch norm's scale and shift
  statistic,  // a running average of what its slot holds: batch norm's mean and variance
  metric,     // only measured: the loss and the accuracy of the step
};

inline bool trained(Role role) {
  return role == Role::weight || role == Role::offset;
}

struct ParameterDeclaration {
  std::string name;
  Shape shape;
  Role role;
  float initial = 0;    // the value it starts with, or,
  float deviation = 0;  // where this is positive, normally distributed around 0 with this standard deviation
};

std::string_view name(const Operation& operation);  // "convolution"

// Both throw Error where the inputs do not fit the operation.
Shape output_shape(const Operation& operation, const std::vector<Shape>& inputs);
std::vector<ParameterDeclaration> parameters(const Operation& operation, const std::vector<Shape>& inputs);

// Multiply-adds of one forward pass over these inputs, counted as 2 operations each; 0 for what is bound by memory.
std::uint64_t flops(const Operation& operation, const std::vector<Shape>& inputs);

}  // namespace annulus
