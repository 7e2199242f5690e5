// The operations of networks that users bring (kernels/operations/), against plain loops in double precision.

#include <array>
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/operation_trial.h"

namespace annulus {
namespace {

using test::blocked;
using test::check_operation;

// The same shape in the layout of images after a convolution, as it comes from outside, and channels-last.
std::vector<TensorSpec> layouts(Device& device, const Shape& shape) {
  const TensorSpec last = device.values({shape[0], shape[2], shape[3], shape[1]});
  return {blocked(device, shape), device.values(shape),
          device.plan(Transpose{{0, 3, 1, 2}}, {last}, Mode::inference, {})->output()};
}

TEST_CASE("convolutions with groups, dilation and any border") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const std::size_t channels : {6, 32})
    for (const Convolution& operation : {
             Convolution{.channels = channels, .kernel = 3, .padding = 1, .groups = channels},  // depthwise
             Convolution{
                 .channels = 2 * channels, .kernel = {3, 5}, .stride = 2, .padding = {1, 2}, .groups = channels},
             Convolution{.channels = channels, .kernel = 7, .padding = 3, .relu = true, .groups = channels},
             Convolution{.channels = 8, .kernel = 1, .bias = false, .groups = 2},
             Convolution{.channels = channels, .kernel = 3, .padding = {0, 1, 1, 0}, .dilation = {2, 1}},
             Convolution{.channels = 5, .kernel = 2, .stride = {1, 2}, .padding = {1, 0, 0, 1}},
             Convolution{.channels = channels, .kernel = 3, .padding = 2, .dilation = 2, .groups = channels},
         }) {
      CAPTURE(channels, operation.kernel.width, operation.groups, operation.stride.width);
      for (const TensorSpec& input : layouts(*device, {2, channels, 9, 8}))
        check_operation(*device, operation, {input});
    }
}

TEST_CASE("convolutions in groups of few channels") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const std::size_t groups : {4, 8, 16, 32})
    for (const Convolution& operation : {
             Convolution{.channels = 32, .kernel = 3, .padding = 1, .relu = true, .groups = groups},
             Convolution{.channels = 32, .kernel = {3, 5}, .stride = {2, 3}, .padding = {1, 0, 2, 3}, .groups = groups},
             Convolution{.channels = 32, .kernel = 2, .padding = 1, .bias = false, .dilation = 2, .groups = groups},
         }) {
      CAPTURE(groups, operation.kernel.width);
      for (const TensorSpec& input : layouts(*device, {3, 32, 9, 12})) check_operation(*device, operation, {input});
    }
}

TEST_CASE("groups of few channels have a kernel of their own, whose results do not depend on threads") {
  struct Case {
    std::size_t channels, groups;
  };
  const auto [channels, groups] = GENERATE(Case{40, 40}, Case{48, 12});
  std::vector<std::vector<std::byte>> expected;
  for (const int threads : {1, 2, 3}) {
    const auto device = test::make_device(threads);
    const Convolution operation{.channels = channels,
                                .kernel = {3, 5},
                                .stride = {2, 3},
                                .padding = {1, 0, 2, 3},
                                .relu = true,
                                .groups = groups};
    test::Trial trial(*device, operation, {blocked(*device, {9, channels, 11, 14})});
    if (test::has_our_layouts()) CHECK(trial.op->info().implementations.empty());
    const auto made = trial.run(trial.bindings, [] {});
    if (expected.empty()) expected = made;
    CHECK(made == expected);
  }
}

TEST_CASE("layers whose weights are inputs") {
  const auto device = test::make_device(GENERATE(1, 2));
  const auto check = [&](const ComputedWeights& operation, const TensorSpec& input) {
    CAPTURE(name(operation), input.layout->name());
    std::vector<TensorSpec> inputs{input};
    const auto declared = std::visit([&](const auto& o) { return o.parameters({input.shape}); }, operation.layer);
    for (const ParameterDeclaration& parameter : declared) inputs.push_back(device->values(parameter.shape));
    check_operation(*device, operation, inputs);
  };
  for (const std::size_t channels : {6, 16})
    for (const TensorSpec& input : layouts(*device, {2, channels, 9, 8})) {
      check({Convolution{.channels = 16, .kernel = 3, .padding = 1}}, input);
      check({Convolution{.channels = 5, .kernel = {2, 3}, .stride = {1, 2}, .bias = false, .dilation = 2}}, input);
      check({Convolution{.channels = channels, .kernel = 3, .padding = 1, .groups = channels}}, input);
      check({Convolution{.channels = 8, .kernel = 1, .groups = 2}}, input);
      check({TransposedConvolution{.channels = 4, .kernel = 3, .stride = 2, .extra = 1, .groups = 2}}, input);
      check({GroupNorm{.groups = 2}}, input);
      check({PRelu{}}, input);
    }
  check({PRelu{.per_channel = false}}, device->values({3, 7}));
  check({Linear{.units = 5}}, device->values({3, 7}));
  check({Linear{.units = 4, .bias = false}}, device->values({2, 3, 7}));
  check({LayerNorm{.axis = 2}}, device->values({2, 3, 7}));
  CHECK_THROWS_WITH(output_shape(ComputedWeights{Linear{.units = 4, .bias = false}}, {{2, 7}, {7, 4}}),
                    "linear: its weight must be 4x7, not 7x4");
}

TEST_CASE("weights that are inputs can be laid out as values, or need no gradient") {
  const auto device = test::make_device(1);
  const ComputedWeights operation{Convolution{.channels = 16, .kernel = 3, .padding = 1}};
  const TensorSpec input = blocked(*device, {2, 16, 9, 8});
  const TensorSpec last = device->values({16, 3, 3, 16});
  const auto moved = device->plan(Transpose{{0, 3, 1, 2}}, {last}, Mode::inference, {});
  for (const TensorSpec& weights : {blocked(*device, {16, 16, 3, 3}), moved->output()})
    check_operation(*device, operation, {input, weights, device->values({16})});
  const std::vector<TensorSpec> inputs{input, device->values({16, 16, 3, 3}), device->values({16})};
  test::Trial trial(*device, operation, inputs);
  const auto expected = trial.run(trial.bindings, [] {});
  test::Trial without(*device, operation, inputs, false);
  const std::vector<std::vector<std::byte>> output{expected[0]};
  CHECK(without.run(without.bindings, [] {}) == output);
  for (const std::size_t unneeded : {1, 2}) {
    Bindings bindings = trial.bindings;
    bindings.input_gradients[unneeded] = {};
    auto all = expected;
    all.erase(all.begin() + 1 + static_cast<std::ptrdiff_t>(unneeded));
    CHECK(trial.run(bindings, [] {}) == all);
  }
}

TEST_CASE("transposed convolutions") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const TransposedConvolution& operation : {
           TransposedConvolution{.channels = 5, .kernel = 2, .stride = 2},
           TransposedConvolution{.channels = 8, .kernel = 3, .stride = 2, .padding = 1, .extra = 1},
           TransposedConvolution{.channels = 4, .kernel = {3, 2}, .dilation = {2, 1}, .groups = 2, .bias = false},
           TransposedConvolution{.channels = 16, .kernel = 4, .stride = {2, 1}, .padding = {1, 0, 0, 1}},
       })
    for (const TensorSpec& input : layouts(*device, {2, 6, 5, 4})) {
      CAPTURE(operation.channels);
      check_operation(*device, operation, {input});
    }
}

TEST_CASE("dense layers over the last dimension, and without a bias") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const bool bias : {true, false}) {
    check_operation(*device, Linear{.units = 7, .bias = bias}, {device->values({2, 5, 6})});
    check_operation(*device, Linear{.units = 33, .bias = bias}, {device->values({2, 3, 4, 20})});
    check_operation(*device, Dense{.units = 7, .relu = !bias, .bias = bias}, {device->values({3, 10})});
  }
}

TEST_CASE("matrix products") {
  const auto device = test::make_device(GENERATE(1, 2));
  check_operation(*device, MatrixProduct{}, {device->values({2, 3, 5, 4}), device->values({2, 3, 4, 6})});
  check_operation(*device, MatrixProduct{}, {device->values({5, 17}), device->values({17, 3})});
  CHECK_THROWS_WITH(output_shape(MatrixProduct{}, {{2, 3, 5, 4}, {2, 3, 5, 4}}), Catch::Contains("{..., m, k}"));
}

TEST_CASE("shapes and operations of attention") {
  CHECK(output_shape(Attention{4}, {{2, 10, 96}}) == Shape{2, 10, 32});
  CHECK(flops(Attention{4}, {{2, 10, 96}}) == 4 * 2 * 10 * 10 * 32);
  CHECK(flops(Attention{4, true}, {{2, 10, 96}}) == 2 * 2 * 10 * 10 * 32);
  CHECK_THROWS_WITH(output_shape(Attention{5}, {{2, 10, 96}}), Catch::Contains("{batch, length, 3 x width}"));
  CHECK(output_shape(Attention{4, true, 0.5f}, {{2, 10, 96}, {2}}) == Shape{2, 10, 32});
  CHECK_THROWS_WITH(output_shape(Attention{4, true, 0.5f}, {{2, 10, 96}}), Catch::Contains("2 inputs"));
  CHECK_THROWS_WITH(output_shape(Attention{4, true, 0.5f}, {{2, 10, 96}, {3}}), Catch::Contains("{batch} keys"));
  CHECK_THROWS_WITH(output_shape(Attention{4, true, 1}, {{2, 10, 96}, {2}}), Catch::Contains("below 1"));
}

TEST_CASE("average pools whose padding or overhang does not count, max pools of any window") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const TensorSpec& input : layouts(*device, {2, 20, 8, 7})) {
    for (const bool count : {true, false})
      check_operation(*device, AveragePool{{3, 2}, 2, {1, 0, 2, 1}, count, {1, 1}}, {input});
    check_operation(*device, MaxPool{{3, 2}, {2, 1}, {0, 1, 1, 0}}, {input});
  }
}

TEST_CASE("means over any dimensions") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const bool keep : {true, false}) {
    check_operation(*device, Mean{{1}, keep}, {device->values({3, 5, 70})});
    check_operation(*device, Mean{{2}, keep}, {device->values({3, 5, 70})});
    check_operation(*device, Mean{{1, 3}, keep}, {device->values({3, 5, 4, 6})});
    check_operation(*device, Mean{{2, 3}, keep}, {blocked(*device, {3, 20, 4, 6})});
  }
}

TEST_CASE("layer, group, instance and local response norm") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const bool shift : {true, false})
    for (const bool centred : {true, false}) {
      const LayerNorm norm{.axis = 2, .epsilon = 1e-3f, .shift = shift, .centred = centred};
      check_operation(*device, norm, {device->values({3, 5, 40})});
      check_operation(*device, norm, {device->values({3, 5, 1})});
    }
  check_operation(*device, LayerNorm{.axis = 1, .epsilon = 1e-3f}, {device->values({30, 5, 4})});
  for (const TensorSpec& input : layouts(*device, {2, 20, 5, 4})) {
    for (const std::size_t groups : {1, 4, 20}) check_operation(*device, GroupNorm{groups}, {input});
    for (const std::size_t size : {4, 5})
      check_operation(*device, LocalResponseNorm{.size = size, .alpha = 0.5f, .beta = 0.75f, .bias = 2}, {input});
  }
}

TEST_CASE("activations") {
  using enum Activation::Function;
  const auto device = test::make_device(GENERATE(1, 2));
  for (const Activation& operation :
       {Activation{linear, 2, -0.5f}, Activation{clip, -0.25f, 0.5f}, Activation{leaky_relu, 0.1f},
        Activation{elu, 1.5f}, Activation{sigmoid}, Activation{tanh}, Activation{silu}, Activation{gelu},
        Activation{gelu_tanh}, Activation{mish}, Activation{softplus}, Activation{hard_sigmoid, 0.2f, 0.5f},
        Activation{hard_swish}, Activation{absolute}, Activation{exponential}, Activation{square}})
    for (const TensorSpec& input : layouts(*device, {2, 20, 5, 4})) {
      CAPTURE(name(operation.function));
      check_operation(*device, operation, {input});
    }
}

// Their arguments are positive, and far from zero: e^x.
TEST_CASE("activations of positive numbers") {
  using enum Activation::Function;
  const auto device = test::make_device(1);
  for (const Activation& operation : {Activation{logarithm}, Activation{square_root}, Activation{reciprocal}}) {
    CAPTURE(name(operation.function));
    const TensorSpec spec = blocked(*device, {1, 20, 2, 2});
    test::Trial trial(*device, operation, {spec});
    std::vector<float> positive = test::random_values(elements(spec.shape), 2);
    for (float& value : positive) value = std::exp(value);
    device->write(positive, spec, trial.inputs[0].memory.view());
    trial.op->forward();
    test::check_output(trial);
    trial.op->backward(1);
    auto inputs = test::Trial::tensors(trial.inputs);
    test::check_gradient(trial.input_gradients[0], inputs[0], [&] { return trial.objective(inputs, {}); });
  }
}

TEST_CASE("activations of large, infinite and undefined numbers") {
  using enum Activation::Function;
  const auto device = test::make_device(1);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto values = [&](const Activation& operation) {
    const TensorSpec spec = device->values({1, 5});
    test::Trial trial(*device, operation, {spec});
    device->write(std::vector{-infinity, -100.0f, 100.0f, infinity, nan}, spec, trial.inputs[0].memory.view());
    trial.op->forward();
    const auto made = trial.output[0].read();
    CHECK(std::isnan(made.back()));
    return std::vector(made.begin(), made.end() - 1);
  };
  CHECK(values({sigmoid}) == std::vector<float>{0, 0, 1, 1});
  CHECK(values({tanh}) == std::vector<float>{-1, -1, 1, 1});
  CHECK(values({exponential}) == std::vector<float>{0, 0, infinity, infinity});
  CHECK(values({elu, 1}) == std::vector<float>{-1, -1, 100, infinity});
  CHECK(values({softplus}) == std::vector<float>{0, 0, 100, infinity});
}

TEST_CASE("parametric ReLUs") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const bool per_channel : {true, false})
    for (const TensorSpec& input : layouts(*device, {3, 20, 5, 4}))
      check_operation(*device, PRelu{per_channel}, {input});
}

TEST_CASE("arithmetic with repeated operands") {
  using enum Arithmetic::Operator;
  const auto device = test::make_device(GENERATE(1, 2));
  for (const Arithmetic::Operator op : {sum, difference, product, maximum, minimum}) {
    CAPTURE(name(op));
    const Arithmetic operation{op};
    const auto check = [&](const TensorSpec& a, const TensorSpec& b) {
      CAPTURE(to_string(a.shape), to_string(b.shape));
      check_operation(*device, operation, {a, b});
      check_operation(*device, operation, {b, a});
    };
    for (const TensorSpec& images : layouts(*device, {2, 20, 5, 4})) {
      check(images, blocked(*device, {2, 20, 1, 1}));
      check(images, device->values({2, 20, 1, 1}));
      check(images, device->values({20, 1, 1}));
      check(images, device->values({2, 1, 1, 1}));
      check(images, blocked(*device, {2, 1, 1, 1}));
      check(images, device->values({1, 1, 5, 4}));
      check(images, device->values({1}));
      check_operation(*device, operation, {images, images});
    }
    for (const TensorSpec& images : layouts(*device, {3, 1, 5, 4}))  // of one channel, which blocks pad
      for (const TensorSpec& factors : layouts(*device, {3, 1, 1, 1})) check(images, factors);
    check(device->values({3, 7, 10}), device->values({10}));
    check(device->values({3, 7, 10}), device->values({7, 1}));
    check(device->values({3, 1, 10}), device->values({1, 7, 1}));
  }
  CHECK_THROWS_WITH(output_shape(Arithmetic{product}, {{2, 3}, {2, 4}}), Catch::Contains("product of 2x3 and 2x4"));
}

TEST_CASE("quotients") {
  const auto device = test::make_device(GENERATE(1, 2));
  for (const TensorSpec& images : layouts(*device, {2, 20, 5, 4}))
    for (const Shape& divisors : {Shape{2, 20, 5, 4}, Shape{20, 1, 1}, Shape{5, 4}, Shape{1}}) {
      CAPTURE(to_string(divisors));
      test::Trial trial(*device, Arithmetic{Arithmetic::Operator::quotient}, {images, device->values(divisors)});
      const test::Operand& divisor = trial.inputs[1];
      auto values = divisor.read();
      for (float& value : values) value += std::copysign(1.0f, value);  // differences would diverge near 0
      device->write(values, divisor.spec, divisor.memory.view());
      test::check_trial(trial, true, 0);
    }
}

// An operation over inputs of these values: its output, and the gradients of the inputs for a gradient of 1.
struct Known : test::Trial {
  Known(Device& device, const Operation& what, const std::vector<Shape>& shapes,
        const std::vector<std::vector<float>>& values)
      : Trial(device, what, specs(device, shapes)) {
    for (std::size_t i = 0; i < values.size(); ++i) device.write(values[i], inputs[i].spec, inputs[i].memory.view());
    const TensorSpec& spec = output_gradient[0].spec;
    device.write(std::vector<float>(elements(spec.shape), 1), spec, output_gradient[0].memory.view());
    op->forward();
    op->backward(1);
  }

  static std::vector<TensorSpec> specs(Device& device, const std::vector<Shape>& shapes) {
    std::vector<TensorSpec> all;
    for (const Shape& shape : shapes) all.push_back(device.values(shape));
    return all;
  }
};

TEST_CASE("comparisons are 0 or 1, and have no gradients") {
  using enum Arithmetic::Operator;
  using Values = std::vector<float>;
  const auto device = test::make_device(GENERATE(1, 2));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Values a{1, 2, 3, nan}, b{2, 2, 2, nan};
  const auto compare = [&](Arithmetic::Operator op, const Values& expected) {
    CAPTURE(name(op));
    Known same(*device, Arithmetic{op}, {{1, 4}, {1, 4}}, {a, b});
    CHECK(same.output[0].read() == expected);
    for (const test::Operand& gradient : same.input_gradients) CHECK(gradient.read() == Values(4, 0));
    Known repeated(*device, Arithmetic{op}, {{1, 3}, {1}}, {{1, 2, 3}, {2}});
    CHECK(repeated.output[0].read() == Values(expected.begin(), expected.end() - 1));
    CHECK(repeated.input_gradients[1].read() == Values{0});
  };
  compare(greater, {0, 0, 1, 0});
  compare(at_least, {0, 1, 1, 0});
  compare(equal, {0, 1, 0, 0});
  for (const TensorSpec& images : layouts(*device, {2, 20, 5, 4}))
    for (const Arithmetic::Operator op : {greater, at_least, equal, choice})
      check_operation(*device, Arithmetic{op}, {images, images});
}

TEST_CASE("a choice passes nothing of what is not chosen") {
  using enum Arithmetic::Operator;
  using Values = std::vector<float>;
  const auto device = test::make_device(GENERATE(1, 2));
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  Known chosen(*device, Arithmetic{choice}, {{1, 5}, {1, 5}}, {{nan, infinity, 3, 4, -5}, {0, 0, 1, 0, 1}});
  CHECK(chosen.output[0].read() == Values{0, 0, 3, 0, -5});
  CHECK(chosen.input_gradients[0].read() == Values{0, 0, 1, 0, 1});
  CHECK(chosen.input_gradients[1].read() == Values(5, 0));
}

TEST_CASE("a gradient of 0 stays 0 where a derivative is infinite") {
  using enum Activation::Function;
  using Values = std::vector<float>;
  const auto device = test::make_device(1);
  const auto gradients = [&](const Operation& operation, const std::vector<Values>& values) {
    std::vector<Shape> shapes(values.size(), {1, 2});
    Known trial(*device, operation, shapes, values);
    device->write(Values{0, 0}, trial.output_gradient[0].spec, trial.output_gradient[0].memory.view());
    trial.op->backward(1);
    return trial.input_gradients[0].read();
  };
  CHECK(gradients(Activation{exponential}, {{1000, 1}}) == Values{0, 0});
  CHECK(gradients(Activation{logarithm}, {{0, -1}}) == Values{0, 0});
  CHECK(gradients(Activation{square_root}, {{0, -1}}) == Values{0, 0});
  CHECK(gradients(Activation{reciprocal}, {{0, 1}}) == Values{0, 0});
  CHECK(gradients(Arithmetic{Arithmetic::Operator::quotient}, {{1, 1}, {0, 1}}) == Values{0, 0});
}

TEST_CASE("maxima of a dimension") {
  using Values = std::vector<float>;
  const auto device = test::make_device(GENERATE(1, 2));
  for (const Shape& shape : {Shape{3, 10}, Shape{2, 3, 5, 33}, Shape{4, 1}})
    check_operation(*device, Maximum{}, {device->values(shape)});
  for (const TensorSpec& images : layouts(*device, {2, 20, 5, 4})) check_operation(*device, Maximum{}, {images});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Known trial(*device, Maximum{}, {{3, 4}}, {{1, 5, 5, 2, -3, -3, -3, -3, 0, nan, 1, 2}});
  const Values largest = trial.output[0].read(), gradient = trial.input_gradients[0].read();
  CHECK(Values(largest.begin(), largest.end() - 1) == Values{5, -3});
  CHECK(std::isnan(largest.back()));
  CHECK(Values(gradient.begin(), gradient.begin() + 8) == Values{0, 0.5f, 0.5f, 0, 0.25f, 0.25f, 0.25f, 0.25f});
}

TEST_CASE("softmax") {
  const auto device = test::make_device(GENERATE(1, 2));
  check_operation(*device, Softmax{}, {device->values({3, 10})});
  check_operation(*device, Softmax{}, {device->values({2, 3, 5, 33})});
}

TEST_CASE("attention") {
  const auto device = test::make_device(GENERATE(1, 2));
  const bool causal = GENERATE(false, true);
  for (const std::size_t length : {1, 3, 17, 63, 64, 65, 197})
    for (const auto& [batch, heads, each] : {std::array<std::size_t, 3>{1, 1, 16}, {3, 2, 5}, {1, 3, 32}}) {
      if (length > 65 && batch > 1) continue;  // the loops in double precision would take long
      CAPTURE(causal, length, heads, each);
      check_operation(*device, Attention{heads, causal}, {device->values({batch, length, 3 * heads * each})});
    }
  for (const std::size_t each : {64, 80, 136}) {
    CAPTURE(causal, each);
    check_operation(*device, Attention{2, causal}, {device->values({1, 65, 6 * each})});
  }
}

TEST_CASE("attention of large scores, and of more heads than are computed in parts") {
  const auto device = test::make_device(2);
  const Attention operation{.heads = 2, .causal = GENERATE(false, true)};
  const TensorSpec spec = device->values({20, 100, 3 * 2 * 4});
  test::Trial trial(*device, operation, {spec});
  auto values = test::random_values(elements(spec.shape), 2);
  for (float& value : values) value *= 20;  // exponentials of some scores would overflow
  device->write(values, spec, trial.inputs[0].memory.view());
  trial.op->forward();
  CHECK(test::distance(trial.output[0].tensor().values,
                       naive_forward(operation, test::Trial::tensors(trial.inputs), {}).values) <= 1e-3);
}

// Attention with dropout, of samples with these keys.
struct Dropping : test::Trial {
  Dropping(Device& device, const Attention& what, const Shape& shape, const std::vector<std::int32_t>& keys,
           Mode mode = Mode::training)
      : Trial(device, what, {device.values(shape), device.plain({shape[0]}, DataType::i32)}, true, mode),
        key_values(keys),
        key_memory(device.allocate(keys.size() * sizeof keys[0])) {
    device.upload(std::as_bytes(std::span(keys)), key_memory.view());
    bindings.inputs[1] = key_memory.view();
    if (mode == Mode::training) bindings.input_gradients[1] = {};
    op->bind(bindings);
  }

  std::vector<test::Tensor> input_tensors() const {
    return {inputs[0].tensor(), {{key_values.size()}, {key_values.begin(), key_values.end()}}};
  }

  std::vector<std::int32_t> key_values;
  Buffer key_memory;
};

TEST_CASE("attention with dropout, against plain loops") {
  const auto device = test::make_device(GENERATE(1, 2));
  const bool causal = GENERATE(false, true);
  for (const std::size_t length : {3, 65, 130}) {
    CAPTURE(causal, length);
    const Attention operation{.heads = 2, .causal = causal, .dropout = 0.25f, .number = 3};
    Dropping trial(*device, operation, {2, length, 3 * 2 * 8}, {7, -5});
    trial.op->forward();
    auto inputs = trial.input_tensors();
    CHECK(test::distance(trial.output[0].tensor().values, naive_forward(operation, inputs, {}).values) <=
          10 * test::kTolerance);
    trial.op->backward(1);
    test::check_gradient(trial.input_gradients[0], inputs[0], [&] { return trial.objective(inputs, {}); });
  }
}

TEST_CASE("the dropout of attention depends only on a sample's key, the layer and the weight's place") {
  const auto device = test::make_device(2);
  const Shape shape{4, 40, 3 * 3 * 8};
  const Attention operation{.heads = 3, .causal = true, .dropout = 0.5f, .number = 1};
  const auto run = [&](const Attention& what, const std::vector<std::int32_t>& keys, Mode mode = Mode::training) {
    Dropping trial(*device, what, {keys.size(), shape[1], shape[2]}, keys, mode);
    trial.op->forward();
    return trial.output[0].read();
  };
  const auto whole = run(operation, {7, -1, 7, 20});
  const auto half = run(operation, {7, -1});  // random operands begin with the same values
  CHECK(std::equal(half.begin(), half.end(), whole.begin()));
  CHECK(run(operation, {8, -1}) != half);
  Attention other = operation;
  other.number = 2;
  CHECK(run(other, {7, -1}) != half);
  // In inference, and if nothing is dropped, the same bits as without dropout.
  const Attention plain{.heads = 3, .causal = true};
  test::Trial without(*device, plain, {device->values({2, shape[1], shape[2]})});
  without.op->forward();
  CHECK(run(operation, {7, -1}, Mode::inference) == without.output[0].read());
  Attention keeping = operation;
  keeping.dropout = 1e-12f;
  CHECK(run(keeping, {7, -1}) == without.output[0].read());
}

TEST_CASE("attention does not depend on threads") {
  const Attention operation{.heads = 3, .causal = GENERATE(false, true)};
  const std::size_t batch = GENERATE(1, 12);  // a head's keys are divided into parts, or not
  std::vector<std::vector<std::byte>> expected;
  for (const int threads : {1, 2, 3}) {
    const auto device = test::make_device(threads);
    test::Trial trial(*device, operation, {device->values({batch, 197, 3 * 3 * 24})});
    const auto made = trial.run(trial.bindings, [] {});
    if (expected.empty()) expected = made;
    CHECK(made == expected);
  }
}

TEST_CASE("operations that move elements") {
  const auto device = test::make_device(GENERATE(1, 2));
  const TensorSpec tokens = device->values({3, 20, 35});
  check_operation(*device, Reshape{{Reshape::kInferred, 100, 7}}, {tokens});
  check_operation(*device, Transpose{{1, 0, 2}}, {tokens});
  check_operation(*device, Transpose{{0, 2, 1}}, {tokens});
  check_operation(*device, Transpose{{2, 1, 0}}, {tokens});
  check_operation(*device, Slice{1, 4, 13}, {tokens});
  check_operation(*device, Slice{0, 1, 2}, {tokens});
  check_operation(*device, Gather{1, {3, 3, 0, 19, 7}}, {tokens});
  check_operation(*device, Pad{{0, 1, 0}, {0, 2, 3}, 0.5f}, {tokens});
  check_operation(*device, Concat{2}, {tokens, device->values({3, 20, 4})});
  check_operation(*device, Concat{0}, {tokens, tokens});
  for (const TensorSpec& images : layouts(*device, {2, 20, 5, 4})) {
    check_operation(*device, Reshape{{Reshape::kInferred, 4, 5, 5, 4}}, {images});
    check_operation(*device, Transpose{{0, 2, 3, 1}}, {images});
    check_operation(*device, Slice{1, 10, 10}, {images});
    check_operation(*device, Pad{{0, 0, 1, 2}, {0, 0, 0, 3}}, {images});
  }
  check_operation(*device, Transpose{{0, 3, 2, 1, 4, 5}}, {device->values({2, 3, 4, 2, 3, 5})});
}

TEST_CASE("repeating a value for every sample") {
  const auto device = test::make_device(1);
  const Expand operation{{Expand::kBatch, 1, 70}};
  const TensorSpec token = device->values({1, 1, 70}), batch = device->values({5, 3});
  CHECK(output_shape(operation, {token.shape, batch.shape}) == Shape{5, 1, 70});
  CHECK_THROWS_WITH(output_shape(operation, {{1, 2, 70}, {5, 3}}), Catch::Contains("cannot be expanded"));
  test::Trial trial(*device, operation, {token, batch});
  trial.op->forward();
  test::check_output(trial);
  trial.op->backward(1);
  auto inputs = test::Trial::tensors(trial.inputs);
  test::check_gradient(trial.input_gradients[0], inputs[0], [&] { return trial.objective(inputs, {}); });
}

TEST_CASE("resizing images") {
  const auto device = test::make_device(GENERATE(1, 2));
  using enum Resize::Coordinates;
  using enum Resize::Rounding;
  for (const Resize::Coordinates coordinates : {half_pixel, pytorch_half_pixel, align_corners, asymmetric})
    for (const Extent size : {Extent{10, 12}, Extent{3, 2}, Extent{7, 1}})
      for (const TensorSpec& input : layouts(*device, {2, 20, 5, 4})) {
        CAPTURE(coordinates, size.height);
        check_operation(*device, Resize{size, true, coordinates}, {input});
        check_operation(*device, Resize{size, true, coordinates, floor, 2.125f, 3.0625f}, {input});
        for (const Resize::Rounding rounding : {round_prefer_floor, round_prefer_ceil, floor, ceil})
          check_operation(*device, Resize{size, false, coordinates, rounding}, {input});
        check_operation(*device, Resize{size, false, coordinates, floor, 2.125f, 3.0625f}, {input});
      }
}

TEST_CASE("parameters and constants as values") {
  const auto device = test::make_device(GENERATE(1, 2));
  check_operation(*device, Learned{.shape = {1, 7, 5}}, {});
  check_operation(*device, Learned{.shape = {}}, {});
  test::Trial constant(*device, Constant{.shape = {2, 2}, .values = {1, 2, 3, 4}}, {});
  constant.op->forward();
  test::check_output(constant);
  CHECK_THROWS_WITH(output_shape(Constant{.shape = {3}, .values = {1}}, {}), Catch::Contains("1 values"));
}

}  // namespace
}  // namespace annulus
