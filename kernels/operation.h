#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/tensor.h"

namespace annulus {

// The operations a network is made of, as plain data. Each takes its inputs' shapes and says its output's shape and
// its parameters; how it is computed is a device's matter (kernels/device.h).

// Raw pixels {batch, height, width, channels} (uint8) -> {batch, channels, height, width} (float32),
// (pixel / 255 - mean) / deviation for each channel. The first operation of a network.
struct ImageInput {
  std::vector<float> mean;
  std::vector<float> deviation;
};

// Square kernels; output {batch, channels, ...}. With relu, the output is max(0, .).
struct Convolution {
  std::size_t channels;
  std::size_t kernel;
  std::size_t stride = 1;
  std::size_t padding = 0;
  bool bias = true;
  bool relu = false;
};

// A fully connected layer over everything but the batch: output {batch, units}. With relu, max(0, .).
struct Dense {
  std::size_t units;
  bool relu = false;
};

// With relu, the maximum of a window and 0: a ReLU before or after it, which come to the same.
struct MaxPool {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding = 0;
  bool relu = false;
};

// The mean over each channel's pixels: output {batch, channels, 1, 1}.
struct GlobalAveragePool {};

// Ioffe and Szegedy, "Batch normalization", ICML 2015. Trains with the statistics of the rank's own batch. With add, a
// second input of the output's shape is added to what is normalized; with relu, max(0, .) of that.
struct BatchNorm {
  float epsilon = 1e-5f;
  bool add = false;
  bool relu = false;
};

struct Relu {};

// The sum of two inputs of one shape.
struct Add {};

// Softmax cross-entropy over logits {batch, classes} and labels {batch} (int32). Output {2}, float32: the sum of the
// samples' losses and the number of samples whose largest logit is their label's. The last operation of a network.
//
// With smoothing s, a sample's loss is (1 - s) that of its label plus s times the mean of that of every class (Szegedy
// et al., "Rethinking the Inception architecture", 2015, section 7). In inference it is 0.
struct SoftmaxCrossEntropy {
  float smoothing = 0;
};

using Operation =
    std::variant<ImageInput, Convolution, Dense, MaxPool, GlobalAveragePool, BatchNorm, Relu, Add, SoftmaxCrossEntropy>;

// What becomes of a parameter in a step. Every parameter has a slot in the gradient arena that is summed over all
// ranks with each rank's share weighted by 1 / global batch, so whatever a slot holds comes out as a mean over the
// global batch, the same to the bit on every rank.
enum class Role {
  weight,     // updated by the optimizer, with weight decay
  offset,     // updated by the optimizer, without weight decay: biases, batch norm's scale and shift
  statistic,  // a running average of what its slot holds: batch norm's mean and variance
  metric,     // only measured: the loss and the accuracy of the step
};

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
