// Every form of a ReLU and of a maximum passes NaN, so that divergence is not hidden.

#include <cmath>
#include <limits>

#include "tests/unit/operation_trial.h"

namespace annulus {
namespace {

using test::blocked;
using test::Trial;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Runs an operation on two samples, the second of which has only NaN.
std::vector<float> run(Device& device, const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode) {
  Trial trial(device, operation, inputs, true, mode);
  for (test::Operand& input : trial.inputs) {
    std::vector<float> values = input.read();
    std::fill(values.begin() + std::ssize(values) / 2, values.end(), kNan);
    device.write(values, input.spec, input.memory.view());
  }
  for (test::Operand& parameter : trial.parameters) {  // a variance is not negative
    std::vector<float> values = parameter.read();
    for (float& value : values) value = std::abs(value) + 0.1f;
    device.write(values, parameter.spec, parameter.memory.view());
  }
  trial.op->forward();
  return trial.output[0].read();
}

// `mixes`: the samples, as batch norm does in training.
void check(Device& device, const Operation& operation, const std::vector<TensorSpec>& inputs, bool mixes = false) {
  for (const Mode mode : {Mode::training, Mode::inference}) {
    const std::vector<float> output = run(device, operation, inputs, mode);
    const auto is_nan = [](float value) { return std::isnan(value); };
    const auto middle = output.begin() + std::ssize(output) / 2;
    CAPTURE(name(operation), to_string(inputs[0].shape), static_cast<int>(mode));
    CHECK(std::all_of(middle, output.end(), is_nan));
    CHECK(std::any_of(output.begin(), middle, is_nan) == (mixes && mode == Mode::training));
  }
}

}  // namespace

TEST_CASE("NaN passes the ReLU at the end of a convolution, whoever computes it") {
  const auto device = test::make_device(1);
  const bool bias = GENERATE(false, true);
  for (const std::size_t kernel : {1, 3, 5})
    for (const std::size_t stride : {1, 2})
      for (const std::size_t channels : {1, 3, 32})
        for (const std::size_t filters : {5, 32}) {
          const Shape shape{2, channels, 14, 14};
          const Convolution operation{.channels = filters,
                                      .kernel = kernel,
                                      .stride = stride,
                                      .padding = kernel / 2,
                                      .bias = bias,
                                      .relu = true};
          CAPTURE(kernel, stride, channels, filters, bias);
          check(*device, operation, {device->values(shape)});
          if (channels >= 16) check(*device, operation, {blocked(*device, shape)});
        }
  const Convolution depthwise{.channels = 32, .kernel = 3, .padding = 1, .bias = bias, .relu = true, .groups = 32};
  check(*device, depthwise, {blocked(*device, {2, 32, 9, 9})});
}

TEST_CASE("NaN passes the ReLU at the end of a dense layer") {
  const auto device = test::make_device(1);
  for (const std::size_t units : {3, 64})
    for (const bool bias : {false, true}) {
      const Dense operation{.units = units, .relu = true, .bias = bias};
      check(*device, operation, {device->values({2, 50})});
      check(*device, operation, {blocked(*device, {2, 16, 4, 4})});
    }
}

TEST_CASE("NaN passes the ReLU of batch norm and of max pools, and each activation") {
  const auto device = test::make_device(1);
  for (const std::size_t channels : {3, 16}) {
    const TensorSpec images = channels < 16 ? device->values({2, channels, 8, 8}) : blocked(*device, {2, 16, 8, 8});
    check(*device, BatchNorm{.relu = true}, {images}, true);
    check(*device, BatchNorm{.add = true, .relu = true}, {images, images}, true);
    for (const bool relu : {false, true})
      for (const MaxPool& pool : {MaxPool{2, 2, 0, relu}, MaxPool{3, 2, 1, relu}}) check(*device, pool, {images});
    check(*device, Relu{}, {images});
  }
  const TensorSpec plain = device->values({2, 3, 8, 8});
  check(*device, PRelu{}, {plain});
  using enum Activation::Function;
  for (const Activation& activation :
       {Activation{clip, 0, 6}, Activation{leaky_relu, 0.1f}, Activation{elu, 1}, Activation{sigmoid}, Activation{tanh},
        Activation{silu}, Activation{gelu}, Activation{gelu_tanh}, Activation{mish}, Activation{softplus},
        Activation{hard_sigmoid, 0.2f, 0.5f}, Activation{hard_swish}, Activation{absolute}})
    check(*device, activation, {plain});
}

}  // namespace annulus
