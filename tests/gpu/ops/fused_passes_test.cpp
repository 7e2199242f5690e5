// Every plan for every fused pass, against float64: the output, the sums, and whether both repeat.

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/cuda/vendor/own_product_check.h"
#include "tests/gpu/ops/gpu.h"

namespace annulus {
namespace {

using cuda::BackwardData, cuda::BackwardWeights, cuda::ConvolutionPass, cuda::ConvolutionProblem, cuda::Forward;
using Numbers = std::vector<double>;

// An array on the GPU.
class Array {
 public:
  Array(test::Gpu& gpu, DataType type, std::size_t count, float low, float high) : gpu_(gpu), type_(type) {
    static std::uint64_t seed = 0;
    std::vector<float> values(count);
    ++seed;
    for (std::size_t i = 0; i < count; ++i)
      values[i] = low + (high - low) * static_cast<float>(mix(seed, i) >> 40) / static_cast<float>(1 << 24);
    set(values);
  }

  void set(const std::vector<float>& values) {
    const auto bytes = test::to_type(values, type_);
    const auto there = test::from_type(bytes, type_);
    values_.assign(there.begin(), there.end());
    test::upload(gpu_.context, bytes.data(), bytes.size(), memory_);
  }
  void spoil() { cuda::check(cudaMemsetAsync(address(), 0x3f, memory_.view().bytes, gpu_.context.lane.get())); }

  void* address() const { return memory_.view().address; }
  float* floats() const { return static_cast<float*>(address()); }
  double operator[](std::size_t i) const { return values_[i]; }
  const Numbers& values() const { return values_; }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(memory_.view().bytes);
    test::download(gpu_.context, memory_.view(), all.data());
    return all;
  }
  Numbers read() const {
    const auto values = test::from_type(bytes(), type_);
    return {values.begin(), values.end()};
  }

 private:
  test::Gpu& gpu_;
  DataType type_;
  Numbers values_;  // as written
  Buffer memory_;
};

// Relative to all values, in the root of the mean square.
double error(const Numbers& found, const Numbers& wanted) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    difference += std::isfinite(found[i]) ? (found[i] - wanted[i]) * (found[i] - wanted[i]) : 1e60;
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// Calls visit(input, weights, output) for each pair of pixels that a position of the kernel connects, with the offsets
// of their values; the offset in the weights is that in the first filter.
template <class Visit>
void for_each_product(const ConvolutionProblem& p, const Visit& visit) {
  const std::size_t rows = p.output_height(), columns = p.output_width();
  for (std::size_t output = 0; output < p.batch * rows * columns; ++output)
    for (std::size_t place = 0; place < p.kernel.area(); ++place) {
      // Positions in the padding wrap around to more than the extent.
      const std::size_t y = output / columns % rows * p.stride.height + place / p.kernel.width - p.padding.top;
      const std::size_t x = output % columns * p.stride.width + place % p.kernel.width - p.padding.left;
      if (y < p.height && x < p.width)
        visit(((output / (rows * columns) * p.height + y) * p.width + x) * p.channels, place * p.channels,
              output * p.filters);
    }
}

// A pass's operands with random values, and the results in float64.
class Trial {
 public:
  explicit Trial(const ConvolutionProblem& problem) : p(problem) {
    if (p.adds_elsewhere()) {  // outputs of a ReLU; scale and shift as NormGradient requires
      std::vector<float> rectified_output(norm_output.values().begin(), norm_output.values().end());
      for (float& value : rectified_output) value = std::max(value, 0.0f);
      norm_output.set(rectified_output);
      norm_scale.set(std::vector<float>(p.channels));
      norm_shift.set(std::vector<float>(p.channels, cuda::kShiftBelowZero));
    } else if (p.is_own() && p.sums_gradient()) {  // reads scale and shift for the values before the norm
      std::vector<float> factors(p.channels), offsets(p.channels);
      for (std::size_t c = 0; c < p.channels; ++c) {
        factors[c] = static_cast<float>(inverse[c] * norm_scale[c]);
        offsets[c] = static_cast<float>(norm_shift[c] - mean[c] * factors[c]);
      }
      scale.set(factors);
      shift.set(offsets);
    }
    if (p.is<Forward>())
      expect_forward();
    else if (p.is<BackwardData>())
      expect_backward_data();
    else
      expect_backward_weights();
  }

  struct Result {
    std::string name;
    Array* array;
    Numbers wanted;
    double tolerance;
    bool repeats;  // must be bit-identical from run to run
  };
  std::vector<Result> results;

  // Returns a line about the plan.
  std::string check_plan(cuda::ConvolutionPlan& plan) {
    const Buffer workspace = cuda::allocate_device(plan.workspace_bytes());
    std::string line;
    std::vector<std::vector<std::byte>> first;
    std::vector<bool> same(results.size(), true);
    for (int run = 0; run < kRuns; ++run) {
      for (const Result& result : results) result.array->spoil();
      plan.run(operands(), workspace.view().address, gpu.context.lane.get());
      for (std::size_t i = 0; i < results.size(); ++i) {
        const auto bytes = results[i].array->bytes();
        if (run == 0) first.push_back(bytes);
        same[i] = same[i] && bytes == first[i];
      }
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto& [name, array, wanted, tolerance, repeats] = results[i];
      const double found = error(array->read(), wanted);
      CAPTURE(name);
      CHECK(found < tolerance);
      if (repeats) CHECK(same[i]);
      line += fmt::format("  {} {:.1e}{}", name, found, same[i] ? "" : " (differs from run to run)");
    }
    return line;
  }

 private:
  static constexpr int kRuns = 4;

  Array channels(DataType of, float low, float high) { return {gpu, of, p.channels, low, high}; }
  Array inputs(float low, float high) { return {gpu, type, count, low, high}; }

  Numbers rectified(const Array& from, const Array* more) const {
    Numbers values(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t c = i % p.channels;
      values[i] = std::max(0.0, from[i] * scale[c] + shift[c] + (more != nullptr ? (*more)[i] : 0));
    }
    return values;
  }

  // The forward pass's input, which other passes may read as well.
  Numbers values_of_input() const {
    if (p.ends_block()) return rectified(norm_input, &addend);
    return p.normalizes() ? rectified(p.is_own() ? norm_input : input, nullptr) : input.values();
  }

  void expect_forward() {
    const Numbers x = values_of_input();
    const std::size_t each = p.kernel.area() * p.channels;
    Numbers y(output.values().size()), sum(p.filters), square(p.filters);
    for_each_product(p, [&](std::size_t in, std::size_t w, std::size_t out) {
      for (std::size_t f = 0; f < p.filters; ++f)
        for (std::size_t c = 0; c < p.channels; ++c) y[out + f] += x[in + c] * weights[f * each + w + c];
    });
    for (std::size_t i = 0; i < y.size(); ++i) {
      sum[i % p.filters] += y[i];
      square[i % p.filters] += y[i] * y[i];
    }
    results.push_back({"output", &output, y, rounded, true});
    if (p.ends_block() || (p.is_own() && p.normalizes())) results.push_back({"input", &input, x, rounded, true});
    if (!p.has_statistics()) return;
    results.push_back({"sums", &sums, sum, summed, p.is_own()});
    results.push_back({"squares", &squares, square, summed, p.is_own()});
  }

  void expect_backward_data() {
    const std::size_t each = p.kernel.area() * p.channels;
    Numbers gradient(count), sum(p.channels), normalized_sums(p.channels);
    for_each_product(p, [&](std::size_t in, std::size_t w, std::size_t out) {
      for (std::size_t f = 0; f < p.filters; ++f)
        for (std::size_t c = 0; c < p.channels; ++c) gradient[in + c] += output[out + f] * weights[f * each + w + c];
    });
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t c = i % p.channels;
      const double normalized = (norm_input[i] - mean[c]) * inverse[c];
      if (p.adds_elsewhere()) gradient[i] += others[i];
      if (p.adds_elsewhere() ? !(norm_output[i] > 0) : !(normalized * norm_scale[c] + norm_shift[c] > 0))
        gradient[i] = 0;
      sum[c] += gradient[i];
      normalized_sums[c] += gradient[i] * normalized;
    }
    results.push_back({"gradient", &input, gradient, rounded, true});
    results.push_back({"sum", &gradient_sum, sum, summed, p.is_own()});
    results.push_back({"normalized sum", &normalized_sum, normalized_sums, summed, p.is_own()});
  }

  void expect_backward_weights() {
    const Numbers x = values_of_input();
    const std::size_t each = p.kernel.area() * p.channels;
    Numbers gradient(weights.values().size());
    for_each_product(p, [&](std::size_t in, std::size_t w, std::size_t out) {
      for (std::size_t f = 0; f < p.filters; ++f)
        for (std::size_t c = 0; c < p.channels; ++c) gradient[f * each + w + c] += output[out + f] * x[in + c];
    });
    results.push_back({"gradient", &weights, gradient, rounded, true});
  }

  cuda::ConvolutionOperands operands() {
    return {.input = input.address(),
            .weights = weights.address(),
            .output = output.address(),
            .scale = scale.address(),
            .shift = shift.address(),
            .norm_input = norm_input.address(),
            .addend = addend.address(),
            .norm_output = norm_output.address(),
            .gradient_of_others = others.address(),
            .sums = sums.address(),
            .squares = squares.address(),
            .norm = {mean.floats(), inverse.floats(), norm_scale.floats(), norm_shift.floats(), gradient_sum.floats(),
                     normalized_sum.floats(), unused[0].floats(), unused[1].floats(), unused[2].floats()}};
  }

  ConvolutionProblem p;
  DataType type = value_type(p.precision);
  // Errors of values in 16 bits, and of sums.
  double rounded = type == DataType::f16 ? 1e-3 : 8e-3, summed = rounded;
  test::Gpu gpu{p.precision};
  std::size_t count = p.batch * p.height * p.width * p.channels;
  // Sums of products have a std of about 1.
  float bound = 3 / std::sqrt(static_cast<float>(p.kernel.area() * (p.is<Forward>() ? p.channels : p.filters)));
  Array input = inputs(-1, 1), norm_input = inputs(-2, 2), addend = inputs(-1, 1), norm_output = inputs(-1, 1),
        others = inputs(-1, 1);
  Array weights{gpu, type, p.filters* p.kernel.area() * p.channels, -bound, bound};
  Array output{gpu, type, p.batch* p.output_height() * p.output_width() * p.filters, -1, 1};
  DataType of_factors = p.is_own() ? DataType::f32 : type;
  Array scale = channels(of_factors, 0.5f, 1.5f), shift = channels(of_factors, -0.5f, 0.5f);
  Array sums{gpu, DataType::f32, p.filters, 0, 1}, squares{gpu, DataType::f32, p.filters, 0, 1};
  Array mean = channels(DataType::f32, -0.5f, 0.5f), inverse = channels(DataType::f32, 0.5f, 1.5f),
        norm_scale = channels(DataType::f32, 0.5f, 1.5f), norm_shift = channels(DataType::f32, -0.5f, 0.5f),
        gradient_sum = channels(DataType::f32, 0, 1), normalized_sum = channels(DataType::f32, 0, 1);
  Array unused[3] = {channels(DataType::f32, 0, 1), channels(DataType::f32, 0, 1), channels(DataType::f32, 0, 1)};
};

void check_all_plans(const ConvolutionProblem& problem) {
  INFO(to_string(problem));
  fmt::print("{}\n", to_string(problem));
  std::vector<std::unique_ptr<cuda::ConvolutionPlan>> plans;
  try {
    plans = cuda::all_convolution_plans(problem);
  } catch (const Error&) {  // the convolution runs its parts
    fmt::print("  no plan\n");
    return;
  }
  Trial trial(problem);
  for (const auto& plan : plans) fmt::print("{}\n", trial.check_plan(*plan));
}

void check_passes(const ConvolutionProblem& layer) {
  const ConvolutionPass passes[] = {Forward{Forward::stored, true}, Forward{Forward::normalized, true},
                                    BackwardData::summed, BackwardWeights::of_normalized};
  for (const ConvolutionPass& pass : passes) check_all_plans(layer.with(pass));
}

void check_block_end(const ConvolutionProblem& layer) {
  for (const ConvolutionPass& pass :
       {ConvolutionPass(Forward{Forward::block_end, true}), ConvolutionPass(BackwardData::summed_elsewhere)})
    check_all_plans(layer.with(pass));
}

void check_own_products(ConvolutionProblem layer, const std::vector<Precision>& precisions) {
  layer.own_products = true;
  for (const Precision precision : precisions) {
    layer.precision = precision;
    for (const auto input : {Forward::stored, Forward::normalized, Forward::block_end})
      check_all_plans(layer.with(Forward{input, true}));
    for (const auto pass : {BackwardData::summed, BackwardData::summed_elsewhere}) check_all_plans(layer.with(pass));
  }
  check_all_plans(layer.with(Forward{Forward::normalized}));
}

ConvolutionProblem layer(std::size_t batch, std::size_t channels, std::size_t side, std::size_t filters,
                         std::size_t kernel, std::size_t stride = 1) {
  return {Forward{}, Precision::fp16, batch, channels, side, side, filters, kernel, stride, kernel / 2};
}

// Layers for which a GPU that has our kernel has those for all like it.
const ConvolutionProblem kProduct = layer(1, 64, 1, 64, 1), kWindows = layer(1, 16, 1, 16, 3);

}  // namespace

TEST_CASE("on a GPU: every plan of a fused pass over few values, against float64", "[fused_passes]") {
  check_passes(layer(3, 24, 9, 16, 1));
  check_passes(layer(2, 16, 5, 8, 3));
  check_passes(layer(2, 8, 7, 24, 3, 2));
  check_block_end(layer(3, 24, 9, 16, 1));
  check_block_end(layer(2, 16, 5, 8, 1));
}

TEST_CASE("on a GPU: our own products with batch norms' passes, against float64", "[fused_passes]") {
  if (!cuda::has_own_product(kProduct)) return;
  const std::vector<Precision> both{Precision::bf16, Precision::fp16};
  check_own_products(layer(3, 24, 9, 16, 1), both);                // tails of everything
  check_own_products(layer(1, 8, 1, 8, 1), both);                  // a single pixel
  check_own_products(layer(2, 72, 8, 136, 1), {Precision::bf16});  // several chunks and tiles of columns
  check_own_products(layer(5, 8, 13, 64, 1), {Precision::fp16});   // several tiles of rows in a block
}

TEST_CASE("on a GPU: our own 3x3 convolutions with batch norms' passes, against float64", "[fused_passes]") {
  if (!cuda::has_own_product(kWindows)) return;
  const std::vector<Precision> both{Precision::bf16, Precision::fp16};
  check_own_products(layer(1, 16, 28, 16, 3), both);               // several tiles
  check_own_products(layer(3, 32, 7, 64, 3), both);                // tiles of several images
  check_own_products(layer(1, 16, 28, 32, 3, 2), both);            // even, with a stride
  check_own_products(layer(3, 64, 7, 16, 3, 2), both);             // odd
  check_own_products(layer(2, 32, 14, 32, 3), {Precision::bf16});  // a rest of rows
  check_own_products(layer(3, 64, 5, 64, 3), {Precision::bf16});   // the most weights
  check_own_products(layer(1, 16, 1, 16, 3), {Precision::fp16});   // a single pixel
  check_own_products(layer(3, 16, 1, 32, 3, 2), {Precision::fp16});
  ConvolutionProblem wide = layer(1, 16, 150, 16, 3);  // a row has several tiles
  wide.height = 2;
  check_own_products(wide, {Precision::fp16});
}

TEST_CASE("on a GPU: tuning finds our own products' results right", "[fused_passes]") {
  ConvolutionProblem one =
      GENERATE(layer(256, 512, 7, 2048, 1), layer(128, 64, 7, 64, 3), layer(128, 16, 28, 32, 3, 2));
  if (!cuda::has_own_product(one)) return;
  one.own_products = true;
  one.precision = GENERATE(Precision::bf16, Precision::fp16);
  const auto pass = GENERATE(values<ConvolutionPass>(
      {Forward{Forward::stored, true}, Forward{Forward::normalized, true}, Forward{Forward::block_end, true},
       Forward{Forward::normalized}, BackwardData::summed, BackwardData::summed_elsewhere}));
  CHECK(cuda::own_product_agrees(one.with(pass)));
}

TEST_CASE("on a GPU: our own products of ResNet-50's layers, against float64", "[.][fused_passes]") {
  if (!cuda::has_own_product(kProduct)) return;
  for (const std::size_t narrow : {64, 128, 256, 512}) {
    const std::size_t side = 3584 / narrow;
    check_own_products(layer(4, narrow, side, 4 * narrow, 1), {Precision::bf16, Precision::fp16});
    check_own_products(layer(4, 4 * narrow, side, narrow, 1), {Precision::bf16, Precision::fp16});
  }
}

TEST_CASE("on a GPU: our own 3x3 convolutions of resnet20's layers, against float64", "[.][fused_passes]") {
  if (!cuda::has_own_product(kWindows)) return;
  const std::vector<Precision> both{Precision::bf16, Precision::fp16};
  for (const std::size_t channels : {16, 32, 64})
    check_own_products(layer(128, channels, 448 / channels, channels, 3), both);
  for (const std::size_t channels : {16, 32})
    check_own_products(layer(128, channels, 448 / channels, 2 * channels, 3, 2), both);
}

TEST_CASE("on a GPU: every plan of ResNet-50's fused passes, against float64", "[.][fused_passes]") {
  check_passes(layer(1, 64, 56, 64, 3));
  check_passes(layer(1, 64, 56, 256, 1));
  check_passes(layer(1, 128, 56, 128, 3, 2));
  check_passes(layer(2, 256, 14, 1024, 1));
  check_passes(layer(4, 512, 7, 512, 3));
  check_block_end(layer(1, 256, 56, 64, 1));
  check_block_end(layer(4, 1024, 14, 256, 1));
  check_block_end(layer(8, 2048, 7, 512, 1));
}

}  // namespace annulus
