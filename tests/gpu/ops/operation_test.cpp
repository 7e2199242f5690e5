// Each GPU operation against its CPU counterpart, over random operands that both value types represent exactly:
// output, gradients, zero padding, and bit-identical repetition.

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/dropout_mask.h"
#include "tests/gpu/ops/operation_trial.h"

namespace annulus {
namespace {

using test::any_wanted;
using test::check_against_cpu;
using test::check_close;
using test::Gpu;
using test::GpuTensor;
using test::plan;
using test::random_values;
using test::rounded;
using test::Trial;
using test::Values;
using test::Wanted;

// Records which passes are planned.
class NotingPlanner : public cuda::ConvolutionPlanner {
 public:
  using Passes = std::vector<cuda::ConvolutionPass>;

  explicit NotingPlanner(Passes& passes) : passes_(passes) {}
  std::unique_ptr<cuda::ConvolutionPlan> plan(const cuda::ConvolutionProblem& problem) override {
    passes_.push_back(problem.pass);
    return planner_->plan(problem);
  }
  cuda::ConvolutionPasses choose_passes(const cuda::ConvolutionProblem& layer,
                                        const cuda::NormsBeside& norms) override {
    return planner_->choose_passes(layer, norms);
  }

 private:
  Passes& passes_;
  std::unique_ptr<cuda::ConvolutionPlanner> planner_ = cuda::make_convolution_planner();
};

// Images of awkward sizes.
const Shape kImages[] = {{1, 1, 1, 1}, {1, 8, 1, 1}, {1, 6, 5, 3}, {2, 3, 7, 9}, {3, 17, 6, 6}, {5, 8, 4, 1}};

}  // namespace

TEST_CASE("on a GPU: convolutions") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const std::size_t kernel : {1, 3})
    for (const std::size_t stride : {1, 2})
      for (const std::size_t channels_in : {1, 3, 17})
        for (const std::size_t batch : {1, 3}) {
          // The other parameters are drawn at random, so that all combinations are likely.
          const std::uint64_t draw = mix(kernel, stride, channels_in, batch);
          const std::size_t channels[] = {1, 6, 8, 17};
          const Convolution operation{.channels = channels[draw % 4],
                                      .kernel = kernel,
                                      .stride = stride,
                                      .padding = kernel / 2,
                                      .bias = (draw >> 16) % 2 == 0,
                                      .relu = (draw >> 17) % 2 == 0};
          CAPTURE(operation.channels, kernel, stride, operation.bias, operation.relu);
          check_against_cpu(gpu, operation, {{batch, channels_in, 5, 7}}, wanted);
        }
}

TEST_CASE("on a GPU: layers without an input gradient do not plan it") {
  Gpu gpu(Precision::fp32);
  NotingPlanner::Passes planned;
  gpu.context.convolutions = std::make_unique<NotingPlanner>(planned);
  const Convolution operation{.channels = 4, .kernel = 3};
  const Trial unwanted(gpu, operation, {{1, 3, 5, 5}}, Wanted::none);
  CHECK(planned == NotingPlanner::Passes{cuda::Forward{}, cuda::BackwardWeights::rounded});
  const Trial wanted(gpu, operation, {{1, 3, 5, 5}}, Wanted::written);
  CHECK(planned.back() == cuda::ConvolutionPass(cuda::BackwardData::written));
}

TEST_CASE("on a GPU: convolutions with non-square kernels and padding") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  for (const Extent kernel : {Extent{1, 7}, Extent{7, 1}, Extent{3, 1}})
    for (const std::size_t stride : {1, 2}) {
      const Convolution operation{
          .channels = 6, .kernel = kernel, .stride = stride, .padding = {kernel.height / 2, kernel.width / 2}};
      CAPTURE(kernel.height, kernel.width, stride);
      check_against_cpu(gpu, operation, {{2, 5, 7, 8}}, Wanted::written);
    }
}

TEST_CASE("on a GPU: dense layers") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const bool relu : {false, true})
    for (const std::size_t units : {1, 8, 10, 17}) {
      CAPTURE(units, relu);
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{8, 8}, Shape{2, 3, 3, 2}, Shape{3, 8, 1, 1}})
        check_against_cpu(gpu, Dense{units, relu}, {shape}, wanted);
    }
}

TEST_CASE("on a GPU: batch norm, fused with an addition and a ReLU") {
  const bool synchronized = GENERATE(false, true);  // over a single rank
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const bool add : {false, true})
    for (const bool relu : {false, true}) {
      CAPTURE(add, relu);
      const BatchNorm operation{.epsilon = 1e-3f, .add = add, .relu = relu, .synchronized = synchronized};
      std::vector<Shape> shapes(std::begin(kImages) + 2, std::end(kImages));
      shapes.push_back({3, 200, 6, 5});  // several tiles of columns
      shapes.push_back({9, 3, 17, 13});  // several stripes of rows
      for (const Shape& shape : shapes) {
        std::vector<Shape> inputs{shape};
        if (add) inputs.push_back(shape);
        check_against_cpu(gpu, operation, inputs, wanted);
      }
    }
}

// The last blocks to arrive add up a batch norm's sums; another kernel adds up a repeated operand's.
TEST_CASE("on a GPU: sums have the same bits whether the last blocks or another kernel add them up") {
  Gpu gpu(Precision::fp32);
  gpu.context.multiprocessors = GENERATE(1, 12, 132);
  for (const Shape& shape : {Shape{1, 3, 2, 2}, Shape{2, 200, 32, 32}, Shape{2, 200, 40, 79}}) {  // up to 158 stripes
    CAPTURE(gpu.context.multiprocessors, to_string(shape));
    Trial norm(gpu, BatchNorm{}, {shape}, Wanted::none);
    Trial sum(gpu, Arithmetic{Arithmetic::Operator::sum}, {shape, {1, shape[1], 1, 1}}, Wanted::written);
    norm.op->forward();
    for (const std::uint64_t seed : {1, 2}) {
      const Values gradient = random_values(elements(shape), seed);
      for (Trial* trial : {&norm, &sum}) {
        trial->output_gradient[0].write(gradient);
        trial->op->backward(1);
      }
      CHECK(norm.parameter_gradients[1].read() == sum.input_gradients[1].read());
    }
  }
}

TEST_CASE("on a GPU: batch norm statistics are accurate for means far from 0") {
  Gpu gpu(Precision::fp32);
  const Shape shape{4, 5, 9, 9};
  const std::size_t area = 81;
  Trial trial(gpu, BatchNorm{}, {shape}, Wanted::none);
  Values values = trial.input_values[0];
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 3000 + values[i];
  values[0] = -3000;  // and the first may be arbitrary
  trial.inputs[0].write(values);
  trial.op->forward();
  trial.op->backward(1);
  const auto mean = trial.parameter_gradients[2].read(), variance = trial.parameter_gradients[3].read();
  for (std::size_t c = 0; c < shape[1]; ++c) {
    double sum = 0, squares = 0;
    const double count = static_cast<double>(shape[0] * area);
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i / area % shape[1] == c) sum += double{values[i]};
    for (std::size_t i = 0; i < values.size(); ++i)
      if (i / area % shape[1] == c) squares += std::pow(double{values[i]} - sum / count, 2);
    CHECK(mean[c] == Approx(4 * sum / count).epsilon(1e-6));
    CHECK(variance[c] == Approx(4 * squares / (count - 1)).epsilon(1e-3));
  }
}

TEST_CASE("on a GPU: batch norm uses the running statistics in inference") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const BatchNorm operation{.epsilon = 1e-2f, .add = GENERATE(false, true), .relu = GENERATE(false, true)};
  for (const Shape& shape : kImages) {
    std::vector<Shape> inputs{shape};
    if (operation.add) inputs.push_back(shape);
    Trial trial(gpu, operation, inputs, Wanted::none, Mode::inference);
    Values& variance = trial.parameter_values[3];
    for (float& value : variance) value = 1.5f + value;
    trial.parameters[3].write(variance);
    trial.op->forward();
    const auto& p = trial.parameter_values;
    Values expected = trial.input_values[0];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::size_t c = i / (shape[2] * shape[3]) % shape[1];
      expected[i] = p[0][c] * (expected[i] - p[2][c]) / std::sqrt(p[3][c] + operation.epsilon) + p[1][c];
      if (operation.add) expected[i] += trial.input_values[1][i];
      if (operation.relu) expected[i] = std::max(expected[i], 0.0f);
    }
    CAPTURE(to_string(shape));
    check_close(trial.output[0], trial.output[0].read(), expected);
  }
}

TEST_CASE("on a GPU: a batch norm added to its own input") {
  Gpu gpu(Precision::fp32);
  const BatchNorm operation{.add = true, .relu = true};
  const Shape shape{3, 6, 5, 4};
  Trial apart(gpu, operation, {shape, shape}, Wanted::written);
  apart.inputs[1].write(apart.input_values[0]);
  apart.op->forward();
  apart.op->backward(1);

  Trial one(gpu, operation, {shape, shape}, Wanted::written);
  Bindings bindings{};
  bindings.inputs = {one.inputs[0].view(), one.inputs[0].view()};
  bindings.output = one.output[0].view();
  for (const GpuTensor& t : one.parameters) bindings.parameters.push_back(t.view());
  for (const GpuTensor& t : one.parameter_gradients) bindings.parameter_gradients.push_back(t.view());
  bindings.input_gradients = {one.input_gradients[0].view(), one.input_gradients[0].view()};
  bindings.accumulate = {false, true};
  bindings.output_gradient = one.output_gradient[0].view();
  one.op->bind(bindings);
  one.op->forward();
  one.op->backward(1);
  Values expected = apart.input_gradients[0].read();
  const Values second = apart.input_gradients[1].read();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += second[i];
  check_close(one.input_gradients[0], one.input_gradients[0].read(), expected);
}

TEST_CASE("on a GPU: max pools, disjoint and overlapping") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  const bool relu = GENERATE(false, true);
  for (const MaxPool& pool : {MaxPool{2, 2}, MaxPool{3, 2, 1}, MaxPool{3, 3, 1}, MaxPool{3, 1, 1}, MaxPool{2, 3},
                              MaxPool{4, 2, 1}, MaxPool{1, 1}, MaxPool{1, 2}})
    for (const Shape& shape : {Shape{1, 1, 6, 9}, Shape{3, 6, 7, 9}, Shape{2, 17, 4, 4}}) {
      const MaxPool operation{pool.kernel, pool.stride, pool.padding, relu};
      CAPTURE(pool.kernel, pool.stride, pool.padding, relu);
      check_against_cpu(gpu, operation, {shape}, wanted);
    }
}

TEST_CASE("on a GPU: the first of equal pixels in a max pool's window gets the gradient; NaN is propagated") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto pooled = [&](const MaxPool& operation, const Values& channel) {
    Trial trial(gpu, operation, {{1, 1, 4, 4}}, Wanted::written);
    trial.inputs[0].write(channel);
    trial.output_gradient[0].write(Values(elements(trial.op->output().shape), 1.0f));
    trial.op->forward();
    trial.op->backward(1);
    return std::pair(trial.output[0].read(), trial.input_gradients[0].read());
  };
  const Values equal(16, 2.0f);
  CHECK(pooled({2, 2}, equal).second == Values{1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0});
  CHECK(pooled({3, 2, 1}, equal).second == Values{1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(pooled({2, 2, 0, true}, Values(16, 0.0f)).second == Values(16, 0.0f));
  CHECK(pooled({2, 2, 0, true}, Values(16, -1.0f)).first == Values(4, 0.0f));
  for (const bool relu : {false, true})
    for (std::size_t position = 0; position < 4; ++position) {
      Values values(16, 3.0f);
      values[position / 2 * 4 + position % 2] = nan;
      const auto [output, gradient] = pooled({2, 2, 0, relu}, values);
      CHECK(std::isnan(output[0]));
      CHECK(output[1] == 3);
      CHECK(gradient[position / 2 * 4 + position % 2] == 1);
    }
  CHECK_THROWS_WITH(plan(MaxPool{16, 1}, {cuda::value_spec({1, 1, 20, 20}, gpu.context.type())}, Mode::training, gpu),
                    Catch::Contains("16x16"));
}

TEST_CASE("on a GPU: average pools, ReLUs and additions") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  for (const Shape& shape : kImages) {
    for (const Extent size : {Extent{1}, Extent{2, 3}, Extent{7}})
      check_against_cpu(gpu, AdaptiveAveragePool{size}, {shape}, wanted);
    check_against_cpu(gpu, AveragePool{3, 1, 1}, {shape}, wanted);
    check_against_cpu(gpu, AveragePool{1, 2}, {shape}, wanted);
    check_against_cpu(gpu, Relu{}, {shape}, wanted);
    check_against_cpu(gpu, Add{}, {shape, shape}, wanted);
  }
}

TEST_CASE("on a GPU: concatenation, vectorized and not") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Wanted wanted = any_wanted();
  using Channels = std::vector<std::size_t>;
  for (const Channels& channels : {Channels{8, 16}, Channels{16, 8, 3}, Channels{3, 8}, Channels{5, 1, 17}})
    for (const bool images : {true, false}) {
      std::vector<Shape> shapes;
      for (const std::size_t count : channels) shapes.push_back(images ? Shape{2, count, 3, 5} : Shape{2, count});
      CAPTURE(channels, images);
      check_against_cpu(gpu, Concat{}, shapes, wanted);
    }
}

TEST_CASE("on a GPU: dropout, with the CPU's masks") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const DataType type = gpu.context.type();
  const std::vector<std::int32_t> keys{5, -9, 1 << 30};
  Buffer key_memory;
  test::upload(gpu.context, keys.data(), keys.size() * sizeof keys[0], key_memory);
  const TensorSpec key_spec{{3}, DataType::i32, std::make_shared<cuda::Plain>(Shape{3}, DataType::i32)};
  const bool whole = GENERATE(false, true);
  for (const Shape& shape : {Shape{3, 50}, Shape{3, 6, 5, 3}, Shape{3, 8, 1, 1}, Shape{3, 7, 9}, Shape{6, 4, 9}})
    for (const Mode mode : {Mode::training, Mode::inference})
      for (const Wanted wanted : {Wanted::written, Wanted::added_to}) {
        CAPTURE(to_string(shape), whole, mode == Mode::training, static_cast<int>(wanted));
        const Dropout operation{0.5f, 4, whole};
        const TensorSpec spec = cuda::value_spec(shape, type);
        const auto random = [&](std::uint64_t seed) { return rounded(random_values(elements(shape), seed), type); };
        const Values values = random(1), gradient_values = random(2), before = random(3);
        const GpuTensor input(gpu, spec, values), output(gpu, spec, Values(elements(shape), 77.0f));
        const GpuTensor output_gradient(gpu, spec, gradient_values), input_gradient(gpu, spec, before);
        const auto op = plan(operation, {spec, key_spec}, mode, gpu);
        Bindings bindings{};
        bindings.inputs = {input.view(), key_memory.view()};
        bindings.output = output.view();
        bindings.input_gradients = {input_gradient.view(), {}};
        bindings.accumulate = {wanted == Wanted::added_to, false};
        bindings.output_gradient = output_gradient.view();
        op->bind(bindings);
        op->forward();
        if (mode == Mode::training) op->backward(1);
        const DropoutMask mask(operation.rate, operation.number);
        const std::size_t each = elements(shape) / 3;
        Values expected = values, expected_gradient = gradient_values;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const float factor =
              mode == Mode::training ? mask.at(mask.of_sample(keys[i / each]), whole ? 0 : i % each) : 1;
          expected[i] *= factor;
          expected_gradient[i] = factor * expected_gradient[i] + (wanted == Wanted::added_to ? before[i] : 0);
        }
        check_close(output, output.read(), expected);
        if (mode == Mode::training) check_close(input_gradient, input_gradient.read(), expected_gradient);
      }
}

TEST_CASE("on a GPU: ReLU propagates NaN") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const Shape shape{1, 3, 4, 4};
  for (const Operation& operation :
       {Operation(Relu{}), Operation(Convolution{.channels = 3, .kernel = 1, .relu = true}),
        Operation(BatchNorm{.relu = true})}) {
    Trial trial(gpu, operation, {shape}, Wanted::none, Mode::inference);
    if (trial.parameters.size() > 3) trial.parameters[3].write(Values(3, 1.0f));
    Values values(elements(shape), -1.0f);
    values[5] = std::numeric_limits<float>::quiet_NaN();
    trial.inputs[0].write(values);
    trial.op->forward();
    const Values output = trial.output[0].read();
    CHECK(std::isnan(output[5]));
    CHECK(std::ranges::count_if(output, [](float value) { return std::isnan(value); }) >= 1);
    CHECK(!std::isnan(output[4]));
  }
}

TEST_CASE("on a GPU: growing the shared workspace does not affect earlier operations") {
  Gpu gpu(Precision::bf16);
  const Convolution small{.channels = 8, .kernel = 1}, large{.channels = 64, .kernel = 3};
  Trial first(gpu, small, {{2, 8, 5, 5}}, Wanted::written), alone(gpu, small, {{2, 8, 5, 5}}, Wanted::written);
  Trial second(gpu, large, {{2, 8, 5, 5}}, Wanted::written);
  for (Trial* trial : {&alone, &second, &first}) trial->op->forward();
  for (Trial* trial : {&alone, &second, &first}) trial->op->backward(1);
  CHECK(first.parameter_gradients[0].bytes() == alone.parameter_gradients[0].bytes());
}

}  // namespace annulus
