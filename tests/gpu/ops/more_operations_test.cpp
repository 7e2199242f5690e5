// The operations of networks that users bring (kernels/operations/), in every precision. (The unit tests run on GPUs as
// well, but only in fp32.)

#include <catch2/catch.hpp>

#include "tests/gpu/ops/fusion_chooser.h"
#include "tests/gpu/ops/operation_trial.h"

namespace annulus {
namespace {

using test::any_wanted;
using test::check_against_cpu;
using test::FusionChooser;
using test::Gpu;
using test::rounded;
using test::Trial;
using test::Values;
using test::Wanted;

TEST_CASE("on a GPU: convolutions with groups") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const std::size_t channels : {6, 32})
    for (const Convolution& operation : {
             Convolution{.channels = channels, .kernel = 3, .padding = 1, .groups = channels},  // depthwise
             Convolution{.channels = channels, .kernel = {3, 2}, .stride = 2, .relu = true, .groups = channels},
             Convolution{.channels = 2 * channels, .kernel = 3, .stride = {1, 2}, .groups = channels},
             Convolution{.channels = channels, .kernel = 3, .padding = {0, 1, 2, 0}, .dilation = 2, .groups = 2},
             Convolution{.channels = 8, .kernel = 1, .bias = false, .groups = 2},
         }) {
      CAPTURE(channels, operation.channels, operation.groups);
      check_against_cpu(gpu, operation, {{3, channels, 7, 6}}, wanted);
    }
}

TEST_CASE("on a GPU: layers whose weights are inputs") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  const auto check = [&](const ComputedWeights& operation, const Shape& input) {
    CAPTURE(name(operation));
    Shapes inputs{input};
    const auto declared = std::visit([&](const auto& o) { return o.parameters({input}); }, operation.layer);
    for (const ParameterDeclaration& parameter : declared) inputs.push_back(parameter.shape);
    check_against_cpu(gpu, operation, inputs, wanted);
  };
  check({Convolution{.channels = 10, .kernel = 3, .padding = 1}}, {3, 6, 7, 6});
  check({Convolution{.channels = 6, .kernel = 3, .stride = 2, .bias = false, .groups = 6}}, {3, 6, 7, 6});
  if (wanted != Wanted::added_to) check({TransposedConvolution{.channels = 5, .kernel = 3, .stride = 2}}, {3, 6, 7, 6});
  check({GroupNorm{.groups = 2}}, {3, 6, 7, 6});
  check({PRelu{}}, {3, 6, 7, 6});
  check({LayerNorm{.axis = 2}}, {2, 3, 7});
  check({Linear{.units = 5}}, {3, 7});
}

TEST_CASE("on a GPU: transposed convolutions") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = GENERATE(Wanted::written, Wanted::none);
  for (const TransposedConvolution& operation : {
           TransposedConvolution{.channels = 5, .kernel = 2, .stride = 2},
           TransposedConvolution{.channels = 8, .kernel = 3, .stride = 2, .padding = 1, .extra = 1},
           TransposedConvolution{.channels = 4, .kernel = {3, 2}, .dilation = {2, 1}, .groups = 2, .bias = false},
           TransposedConvolution{.channels = 16, .kernel = 4, .stride = {2, 1}, .padding = {1, 0, 0, 1}},
       }) {
    CAPTURE(operation.channels);
    check_against_cpu(gpu, operation, {{2, 6, 5, 4}}, wanted);
  }
  CHECK_THROWS_WITH(check_against_cpu(gpu, TransposedConvolution{.channels = 5, .kernel = 3, .extra = 1, .dilation = 2},
                                      {{2, 6, 5, 4}}, wanted),
                    Catch::Contains("1x1 extra pixels"));
}

TEST_CASE("on a GPU: convolutions that write the gradients of their weights in float32") {
  Gpu gpu(GENERATE(Precision::bf16, Precision::fp16));
  gpu.context.convolutions =
      std::make_unique<FusionChooser>(cuda::ConvolutionPasses{.backward_weights = cuda::BackwardWeights::wide});
  const auto check = [&](const Operation& operation, bool wide) {
    check_against_cpu(gpu, operation, {{2, 6, 9, 8}}, Wanted::written);
    Trial trial(gpu, operation, {{2, 6, 9, 8}}, Wanted::none);
    trial.op->forward();
    trial.op->backward(1);
    const Values gradient = trial.parameter_gradients[0].read();
    CHECK((gradient != rounded(gradient, gpu.context.type())) == wide);
  };
  check(Convolution{.channels = 10, .kernel = 1, .relu = true}, true);
  check(TransposedConvolution{.channels = 5, .kernel = 1}, true);
  check(Convolution{.channels = 4, .kernel = 3, .groups = 2}, true);
  check(Convolution{.channels = 8, .kernel = 1, .stride = 2}, false);
  check(Convolution{.channels = 8, .kernel = 3, .padding = 1}, false);
}

TEST_CASE("on a GPU: pools of any window, parametric ReLUs, and resizing") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  const Shape images{2, 20, 8, 7};
  for (const bool count : {true, false})
    check_against_cpu(gpu, AveragePool{{3, 2}, 2, {1, 0, 2, 1}, count, {1, 1}}, {images}, wanted);
  check_against_cpu(gpu, MaxPool{{3, 2}, {2, 1}, {0, 1, 1, 0}}, {images}, wanted);
  for (const bool per_channel : {true, false}) {
    check_against_cpu(gpu, PRelu{per_channel}, {images}, wanted);
    check_against_cpu(gpu, PRelu{per_channel}, {{3, 9}}, wanted);
  }
  using enum Resize::Coordinates;
  for (const bool linear : {true, false})
    for (const Resize::Coordinates coordinates : {half_pixel, align_corners, asymmetric})
      for (const Extent size : {Extent{10, 12}, Extent{3, 2}, Extent{7, 5}}) {
        CAPTURE(linear, coordinates, size.height);
        check_against_cpu(gpu, Resize{size, linear, coordinates}, {{2, 6, 5, 4}}, wanted);
        check_against_cpu(gpu, Resize{size, linear, coordinates, Resize::Rounding::floor, 2.125f, 1.25f},
                          {{2, 6, 5, 4}}, wanted);
      }
}

TEST_CASE("on a GPU: linear layers and dense ones without a bias") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const bool bias : {true, false}) {
    check_against_cpu(gpu, Linear{.units = 7, .bias = bias}, {{2, 5, 6}}, wanted);
    check_against_cpu(gpu, Linear{.units = 33, .bias = bias}, {{2, 3, 4, 20}}, wanted);
    check_against_cpu(gpu, Dense{.units = 7, .relu = !bias, .bias = bias}, {{3, 10}}, wanted);
    check_against_cpu(gpu, Dense{.units = 7, .bias = bias}, {{3, 5, 9}}, wanted);
  }
}

TEST_CASE("on a GPU: matrix products") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  check_against_cpu(gpu, MatrixProduct{}, {{2, 3, 5, 4}, {2, 3, 4, 6}}, wanted);
  check_against_cpu(gpu, MatrixProduct{}, {{3, 5, 16}, {3, 16, 9}}, wanted);
  check_against_cpu(gpu, MatrixProduct{}, {{5, 17}, {17, 3}}, wanted);
}

TEST_CASE("on a GPU: attention") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const bool causal : {false, true}) {
    check_against_cpu(gpu, Attention{.heads = 3, .causal = causal}, {{2, 33, 3 * 3 * 5}}, wanted);
    check_against_cpu(gpu, Attention{.heads = 2, .causal = causal}, {{1, 70, 3 * 2 * 40}}, wanted);
    check_against_cpu(gpu, Attention{.heads = 1, .causal = causal}, {{1, 3, 3 * 136}}, wanted);
  }
}

TEST_CASE("on a GPU: activations") {
  using enum Activation::Function;
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const Activation& operation :
       {Activation{linear, 2, -0.5f}, Activation{clip, -0.25f, 0.5f}, Activation{leaky_relu, 0.1f},
        Activation{elu, 1.5f}, Activation{sigmoid}, Activation{tanh}, Activation{silu}, Activation{gelu},
        Activation{gelu_tanh}, Activation{mish}, Activation{softplus}, Activation{hard_sigmoid, 0.2f, 0.5f},
        Activation{hard_swish}, Activation{absolute}, Activation{exponential}, Activation{square}, Activation{sign}}) {
    CAPTURE(name(operation.function));
    check_against_cpu(gpu, operation, {{2, 17, 5, 4}}, wanted);
    check_against_cpu(gpu, operation, {{2, 5, 9}}, wanted);
  }
}

TEST_CASE("on a GPU: arithmetic with repeated operands") {
  using enum Arithmetic::Operator;
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const Arithmetic::Operator op : {sum, difference, product, maximum, minimum, greater, at_least, equal, choice}) {
    CAPTURE(name(op));
    const Shape images{2, 20, 5, 4}, tokens{3, 7, 10};
    for (const Shape& b : {images, Shape{2, 20, 1, 1}, Shape{20, 1, 1}, Shape{1, 1, 5, 4}, Shape{1}}) {
      CAPTURE(to_string(b));
      check_against_cpu(gpu, Arithmetic{op}, {images, b}, wanted);
      check_against_cpu(gpu, Arithmetic{op}, {b, images}, wanted);
    }
    for (const Shape& b : {Shape{10}, Shape{7, 1}}) {
      CAPTURE(to_string(b));
      check_against_cpu(gpu, Arithmetic{op}, {tokens, b}, wanted);
    }
    check_against_cpu(gpu, Arithmetic{op}, {{3, 1, 10}, {1, 7, 1}}, wanted);
  }
}

TEST_CASE("on a GPU: softmax and norms") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  check_against_cpu(gpu, Maximum{}, {{3, 10}}, wanted);
  check_against_cpu(gpu, Maximum{}, {{2, 3, 5, 300}}, wanted);
  check_against_cpu(gpu, Softmax{}, {{3, 10}}, wanted);
  check_against_cpu(gpu, Softmax{}, {{2, 3, 5, 300}}, wanted);
  for (const bool shift : {true, false}) {
    check_against_cpu(gpu, LayerNorm{.axis = 2, .shift = shift}, {{3, 5, 300}}, wanted);
    check_against_cpu(gpu, LayerNorm{.axis = 2, .shift = shift, .centred = false}, {{3, 5, 301}}, wanted);
    check_against_cpu(gpu, LayerNorm{.axis = 1, .epsilon = 1e-3f, .shift = shift}, {{30, 5, 4}}, wanted);
  }
  for (const Shape& shape : {Shape{2, 20, 5, 4}, Shape{1, 20, 17, 13}, Shape{3, 20, 7}})
    for (const std::size_t groups : {1, 4, 10}) check_against_cpu(gpu, GroupNorm{groups}, {shape}, wanted);
  for (const std::size_t size : {4, 5})
    check_against_cpu(gpu, LocalResponseNorm{.size = size, .alpha = 0.5f, .beta = 0.75f, .bias = 2}, {{2, 20, 5, 4}},
                      wanted);
}

TEST_CASE("on a GPU: means") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const bool keep : {true, false}) {
    check_against_cpu(gpu, Mean{{1}, keep}, {{3, 5, 70}}, wanted);
    check_against_cpu(gpu, Mean{{2}, keep}, {{3, 5, 70}}, wanted);
    check_against_cpu(gpu, Mean{{2, 3}, keep}, {{3, 20, 17, 6}}, wanted);
    check_against_cpu(gpu, Mean{{1, 3}, keep}, {{3, 20, 4, 6}}, wanted);
  }
}

TEST_CASE("on a GPU: operations that move elements") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  const Shape tokens{3, 20, 35}, images{2, 16, 5, 4};
  check_against_cpu(gpu, Reshape{{Reshape::kInferred, 100, 7}}, {tokens}, wanted);
  check_against_cpu(gpu, Reshape{{Reshape::kInferred, 4, 64}}, {{3, 16, 16}}, wanted);
  check_against_cpu(gpu, Reshape{{Reshape::kInferred, 16, 20}}, {images}, wanted);
  check_against_cpu(gpu, Reshape{{Reshape::kInferred, 2, 8, 5, 4}}, {images}, wanted);
  for (const auto& order : {std::vector<std::size_t>{1, 0, 2}, {0, 2, 1}, {2, 1, 0}})
    check_against_cpu(gpu, Transpose{order}, {tokens}, wanted);
  for (const auto& order : {std::vector<std::size_t>{0, 2, 3, 1}, {0, 3, 1, 2}, {1, 0, 3, 2}})
    check_against_cpu(gpu, Transpose{order}, {images}, wanted);
  check_against_cpu(gpu, Transpose{{0, 3, 2, 1, 4, 5}}, {{2, 3, 4, 2, 3, 5}}, wanted);
  for (const std::size_t axis : {0, 1, 2}) check_against_cpu(gpu, Slice{axis, 1, 2}, {tokens}, wanted);
  check_against_cpu(gpu, Slice{1, 8, 8}, {images}, wanted);
  check_against_cpu(gpu, Gather{1, {3, 3, 0, 19, 7}}, {tokens}, wanted);
  check_against_cpu(gpu, Gather{2, {3, 3, 0, 19, 7, 5, 5, 5, 1}}, {tokens}, wanted);
  check_against_cpu(gpu, Gather{1, {3, 0, 3}}, {images}, wanted);
  check_against_cpu(gpu, Pad{{0, 1, 3}, {0, 2, 3}, 0.5f}, {tokens}, wanted);
  check_against_cpu(gpu, Pad{{0, 0, 1, 2}, {0, 3, 0, 3}, -2}, {images}, wanted);
  check_against_cpu(gpu, Concat{0}, {tokens, tokens}, wanted);
  check_against_cpu(gpu, Concat{2}, {tokens, {3, 20, 4}}, wanted);
  check_against_cpu(gpu, Concat{2}, {images, {2, 16, 1, 4}, images}, wanted);
}

TEST_CASE("on a GPU: operations on values that are not in the layout that they need") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const DataType type = gpu.context.type();
  const TensorSpec spec = cuda::last_spec({2, 6, 5, 4}, type), other = cuda::value_spec({2, 6, 5, 4}, type);
  const test::Values values = test::rounded(test::random_values(elements(spec.shape), 1), type);
  const auto pooled = [&](const TensorSpec& layout) {
    const auto op = test::plan(AveragePool{2, 1}, {layout}, Mode::training, gpu);
    const test::GpuTensor input(gpu, layout, values),
        output(gpu, op->output(), test::Values(elements(op->output().shape))), gradient(gpu, layout, values);
    const test::GpuTensor output_gradient(gpu, op->output(), test::Values(elements(op->output().shape), 1.0f));
    const Buffer scratch = cuda::allocate_device(std::max<std::size_t>(op->info().scratch_bytes, 16));
    Bindings bindings{};
    bindings.inputs = {input.view()};
    bindings.output = output.view();
    bindings.input_gradients = {gradient.view()};
    bindings.accumulate = {true};
    bindings.output_gradient = output_gradient.view();
    bindings.scratch = scratch.view();
    op->bind(bindings);
    op->forward();
    op->backward(1);
    CHECK(gradient.clean());
    return std::pair(output.read(), gradient.read());
  };
  CHECK(pooled(spec) == pooled(other));
}

}  // namespace
}  // namespace annulus
