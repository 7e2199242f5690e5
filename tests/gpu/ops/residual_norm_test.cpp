// Layer norms of short and long rows, and those that compute the residual addition before them, against the same
// operations apart, and against float64.

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/gpu/ops/operation_trial.h"

namespace annulus {
namespace {

using test::Gpu;
using test::Trial;
using test::Values;
using test::Wanted;

using Doubles = std::vector<double>;

struct Expected {
  Doubles output, input_gradient, scale_gradient, shift_gradient;
};

Expected in_float64(const LayerNorm& norm, std::size_t width, const Values& x, const Values& scale, const Values& shift,
                    const Values& dy) {
  Expected e{Doubles(x.size()), Doubles(x.size()), Doubles(width), Doubles(width)};
  for (std::size_t begin = 0; begin < x.size(); begin += width) {
    double mean = 0, squares = 0, sum = 0, products = 0;
    for (std::size_t i = 0; i < width; ++i) mean += norm.centred ? x[begin + i] / static_cast<double>(width) : 0;
    for (std::size_t i = 0; i < width; ++i) squares += std::pow(x[begin + i] - mean, 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + norm.epsilon);
    for (std::size_t i = 0; i < width; ++i) {
      const double n = (x[begin + i] - mean) * factor, g = double{dy[begin + i]} * scale[i];
      e.output[begin + i] = n * scale[i] + (norm.shift ? shift[i] : 0);
      e.scale_gradient[i] += dy[begin + i] * n;
      e.shift_gradient[i] += dy[begin + i];
      sum += norm.centred ? g / static_cast<double>(width) : 0;
      products += g * n / static_cast<double>(width);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double n = (x[begin + i] - mean) * factor, g = double{dy[begin + i]} * scale[i];
      e.input_gradient[begin + i] = factor * (g - sum - n * products);
    }
  }
  return e;
}

void check_close(const Gpu& gpu, const test::GpuTensor& tensor, const Doubles& expected, double scale = 1) {
  const Values found = tensor.read();
  REQUIRE(found.size() == expected.size());
  double most = 1, off = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    most = std::max(most, std::abs(scale * expected[i]));
    const double distance = std::abs(found[i] - scale * expected[i]);
    off = distance <= off ? off : distance;  // NaN stays
  }
  CHECK(off <= test::tolerance(gpu.context.precision) * most);
  CHECK(tensor.clean());
}

bool same(const test::GpuTensor& a, const test::GpuTensor& b) {
  return a.bytes() == b.bytes();
}

void copy(const test::GpuTensor& from, const test::GpuTensor& to) {
  cuda::check(cudaMemcpyAsync(to.view().address, from.view().address, to.view().bytes, cudaMemcpyDefault,
                              to.gpu->context.lane.get()));
}

}  // namespace

TEST_CASE("on a GPU: a layer norm computes the residual addition before it") {
  Gpu gpu(GENERATE(from_range(std::begin(test::kPrecisions), std::end(test::kPrecisions))));
  const std::size_t width = GENERATE(20, 300, 512, 768, 1024, 1100);
  const bool whole = GENERATE(true, false);
  const Mode mode = GENERATE(Mode::training, Mode::inference);
  const LayerNorm norm{.axis = 2, .shift = whole, .centred = whole};
  const Shape shape{3, 7, width};
  const bool short_rows = width <= 4 * 32 * 16 / size_of(gpu.context.type());
  CAPTURE(to_string(gpu.context.precision), width, whole, static_cast<int>(mode));

  Trial addition(gpu, Add{}, {shape, shape}, Wanted::written, mode);
  addition.op->forward();
  Trial apart(gpu, norm, {shape}, Wanted::added_to, mode), fused(gpu, norm, {shape}, Wanted::added_to, mode);
  copy(addition.output[0], apart.inputs[0]);
  auto& fusion = dynamic_cast<NeighbourFusion&>(*fused.op);
  const Operation before = Add{};
  fusion.fuse_neighbours({.previous_forward = &before});
  REQUIRE(fused.op->info().fused.previous_forward == short_rows);
  if (short_rows) {
    fusion.bind_neighbours({.previous_inputs = {addition.inputs[0].view(), addition.inputs[1].view()},
                            .previous_output = fused.inputs[0].view()});
    fused.op->bind(fused.bindings);
  } else {
    copy(addition.output[0], fused.inputs[0]);
  }
  for (Trial* trial : {&apart, &fused}) trial->op->forward();
  CHECK(same(fused.inputs[0], addition.output[0]));
  CHECK(same(fused.output[0], apart.output[0]));
  const Values& shift = whole ? apart.parameter_values[1] : apart.parameter_values[0];
  const Expected expected =
      in_float64(norm, width, addition.output[0].read(), apart.parameter_values[0], shift, apart.gradient_values);
  check_close(gpu, fused.output[0], expected.output);
  if (mode == Mode::inference) return;
  for (Trial* trial : {&apart, &fused}) trial->op->backward(1);
  CHECK(same(fused.input_gradients[0], apart.input_gradients[0]));
  Doubles input_gradient = expected.input_gradient;
  for (std::size_t i = 0; i < input_gradient.size(); ++i) input_gradient[i] += apart.before[0][i] / gpu.scale();
  check_close(gpu, fused.input_gradients[0], input_gradient, gpu.scale());
  check_close(gpu, fused.parameter_gradients[0], expected.scale_gradient);
  if (whole) check_close(gpu, fused.parameter_gradients[1], expected.shift_gradient);
  for (std::size_t i = 0; i < fused.parameter_gradients.size(); ++i)
    CHECK(same(fused.parameter_gradients[i], apart.parameter_gradients[i]));
}

TEST_CASE("on a GPU: other operations before a layer norm are not computed by it") {
  Gpu gpu(Precision::bf16);
  const auto op =
      cuda::plan_any(LayerNorm{.axis = 1}, {cuda::value_spec({3, 8}, DataType::bf16)}, Mode::training, gpu.context);
  const Operation before = Relu{};
  dynamic_cast<NeighbourFusion&>(*op).fuse_neighbours({.previous_forward = &before});
  CHECK_FALSE(op->info().fused.previous_forward);
}

}  // namespace annulus
