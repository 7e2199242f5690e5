#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/extent.h"
#include "kernels/base/tensor.h"

namespace annulus {

// The operations of a network, as plain data. An operation determines the shape of its output and its parameters from
// the shapes of its inputs; how it is computed is up to the device (kernels/device.h).

// Raw pixels {batch, height, width, channels} (uint8) -> {batch, channels, height, width} (float32),
// (pixel / 255 - mean) / std for each channel. The first operation of a network.
struct ImageInput {
  std::vector<float> mean;
  std::vector<float> stddev;
};

// Output {batch, channels, ...}. With relu, the output is max(0, .).
struct Convolution {
  std::size_t channels;
  Extent kernel;
  std::size_t stride = 1;
  Extent padding = 0;
  bool bias = true;
  bool relu = false;
  float stddev = 0;            // std of the initial weights; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // whether the input's gradient may be needed; if not, nothing is planned for it
};

// A fully connected layer over everything but the batch: output {batch, units}. With relu, max(0, .).
struct Dense {
  std::size_t units;
  bool relu = false;
  float stddev = 0;            // std of the initial weights; 0: sqrt(1 / fan-in)
  bool input_gradient = true;  // as in Convolution
};

// With relu, the maximum of a window and 0; a ReLU before the pool and one after it are equivalent. REQUIRES: padding
// is at most kernel / 2; output_shape() throws Error otherwise.
struct MaxPool {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding = 0;
  bool relu = false;
};

// The mean over each window; padding counts as zeros.
struct AveragePool {
  std::size_t kernel;
  std::size_t stride;
  std::size_t padding = 0;
};

// Averages an image to an output of `size`, whatever the input's size. Row y of h output rows is the mean over the
// input's rows from floor(y H / h) to before ceil((y + 1) H / h). So windows overlap if h does not divide H, and repeat
// if h is larger than H. The same applies to columns. {1} is the mean over each channel's pixels.
struct AdaptiveAveragePool {
  Extent size;
};

// Ioffe and Szegedy, "Batch normalization", ICML 2015. Trains with the statistics of the rank's own batch or, if
// synchronized, of the global batch. With add, a second input of the output's shape is added to the normalized values;
// with relu, the output is max(0, .) of the result. With frozen_statistics, training normalizes with the running
// statistics, as inference does, and does not change them; it is never synchronized.
struct BatchNorm {
  float epsilon = 1e-5f;
  bool add = false;
  bool relu = false;
  bool synchronized = false;
  bool frozen_statistics = false;
  float initial_scale = 1;
};

struct Relu {};

// The sum of two inputs of one shape.
struct Add {};

// Concatenates the channels of any number of inputs, in their order: images of one height and width, or vectors.
struct Concat {};

// Srivastava et al., "Dropout", JMLR 2014: in training, zero with probability `rate`, else 1 / (1 - rate) times the
// input; in inference, the input. The second input is {batch} (int32), a random key of each sample in this epoch. The
// mask (dropout_mask.h) is a function of this key, the element's index in the sample and `number`, so it depends
// neither on the rank nor on the batch. Each dropout of a network needs a different number.
struct Dropout {
  float rate;
  std::uint32_t number = 0;
};

// Softmax cross-entropy over logits {batch, classes} and labels {batch} (int32). Output {3}, float32: the sum of the
// samples' losses, the number of samples whose label has the largest logit, and the number of samples whose label is
// among the kTop largest. Of equal logits the first one ranks higher; NaN ranks above any number. The last operation of
// a network.
//
// With label smoothing s, a sample's loss is (1 - s) times its label's loss plus s times the mean of all classes'
// losses (Szegedy et al., "Rethinking the Inception architecture", 2015, section 7). In inference, s is 0.
struct SoftmaxCrossEntropy {
  static constexpr std::size_t kTop = 5;
  float smoothing = 0;
};

using Operation = std::variant<ImageInput, Convolution, Dense, MaxPool, AveragePool, AdaptiveAveragePool, BatchNorm,
                               Relu, Add, Concat, Dropout, SoftmaxCrossEntropy>;

// How a step changes a parameter. Every parameter that is not frozen has a slot in the gradient arena, which is
// all-reduced with each rank's contribution weighted by 1 / global batch. So every slot ends up with a mean over the
// global batch, bit-identical on every rank.
enum class Role {
  weight,     // updated by the optimizer, with weight decay
  offset,     // updated by the optimizer, without weight decay: biases, batch norm's scale and shift
  statistic,  // a running average of its slot's values: batch norm's mean and variance
  metric,     // only measured: the loss and the accuracy of the step
  frozen,     // not changed, whatever it was declared as
};

inline bool trained(Role role) {
  return role == Role::weight || role == Role::offset;
}

struct ParameterDeclaration {
  std::string name;
  Shape shape;
  Role role;
  float initial = 0;  // the initial value, unless stddev is positive
  float stddev = 0;   // if positive, initial values are normally distributed with mean 0 and this std
};

std::string_view name(const Operation& operation);  // "convolution"

// Both throw Error if the inputs do not fit the operation.
Shape output_shape(const Operation& operation, const std::vector<Shape>& inputs);
std::vector<ParameterDeclaration> parameters(const Operation& operation, const std::vector<Shape>& inputs);

// Returns the multiply-adds of one forward pass over these inputs, counted as 2 operations each; 0 for operations that
// are bound by memory.
std::uint64_t flops(const Operation& operation, const std::vector<Shape>& inputs);

}  // namespace annulus
