#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/base/error.h"
#include "kernels/cuda/vendor/convolution_plan.h"
#include "kernels/cuda/vendor/matmul.h"
#include "tests/gpu/emulator/values.h"
#include "tests/gpu/emulator_tests/emulation_test.h"

// Small whole numbers, whose products and sums are exact in every precision, so that results are too.

namespace {

using annulus::DataType;
using annulus::Precision;
using annulus::value_type;
using namespace annulus::cuda;
using Function = MatmulProblem::Function;

constexpr Precision kPrecisions[] = {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16};

// Zero except for every `period`th, so that sums stay small.
std::vector<float> small_numbers(std::size_t count, std::size_t period) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i += period) values[i] = static_cast<float>(static_cast<int>(i * 7 % 5) - 2);
  return values;
}

// Values on a device, of some type.
class DeviceValues {
 public:
  DeviceValues(const std::vector<float>& values, DataType type)
      : type_(type), count_(values.size()), bytes_(values.size() * annulus::size_of(type)) {
    std::vector<char> packed(values.size() * annulus::size_of(type));
    emulated::store(values, packed.data(), type);
    cudaMemcpy(bytes_.get(), packed.data(), packed.size(), cudaMemcpyHostToDevice);
  }
  char* get() const { return bytes_.get(); }
  float* floats() const { return reinterpret_cast<float*>(get()); }
  std::vector<float> values(cudaStream_t stream) const {
    return emulated::load(bytes_.values(stream).data(), count_, type_);
  }

 private:
  DataType type_;
  std::size_t count_;
  DeviceArray<char> bytes_;
};

struct Operands {
  std::vector<float> input, weights, output;
};

// Computes a pass directly, one product at a time, into the operand that the pass writes.
Operands convolve(const ConvolutionProblem& p, Operands o) {
  const bool adds = p.is(BackwardData::added);
  std::vector<float>& written = p.is<Forward>() ? o.output : p.is<BackwardData>() ? o.input : o.weights;
  if (!adds) std::ranges::fill(written, 0.0f);
  const auto extent = [](std::size_t size) { return static_cast<long>(size); };
  for (std::size_t n = 0; n < p.batch; ++n)
    for (std::size_t f = 0; f < p.filters; ++f)
      for (std::size_t c = 0; c < p.channels; ++c)
        for (std::size_t i = 0; i < p.output_height(); ++i)
          for (std::size_t j = 0; j < p.output_width(); ++j)
            for (std::size_t a = 0; a < p.kernel.height; ++a)
              for (std::size_t b = 0; b < p.kernel.width; ++b) {
                const long y = extent(i * p.stride.height + a) - extent(p.padding.top);
                const long x = extent(j * p.stride.width + b) - extent(p.padding.left);
                if (y < 0 || x < 0 || y >= extent(p.height) || x >= extent(p.width)) continue;
                const std::size_t pixel = (n * p.height + static_cast<std::size_t>(y)) * p.width;
                float& in = o.input[(pixel + static_cast<std::size_t>(x)) * p.channels + c];
                float& weight = o.weights[((f * p.kernel.height + a) * p.kernel.width + b) * p.channels + c];
                float& out = o.output[((n * p.output_height() + i) * p.output_width() + j) * p.filters + f];
                if (p.is<Forward>()) out += in * weight;
                if (p.is<BackwardData>()) in += out * weight;
                if (p.is<BackwardWeights>()) weight += out * in;
              }
  return o;
}

void check_convolution(const ConvolutionProblem& p) {
  const Operands before{small_numbers(p.batch * p.height * p.width * p.channels, 3),
                        small_numbers(p.filters * p.kernel.area() * p.channels, 7),
                        small_numbers(p.batch * p.output_height() * p.output_width() * p.filters, 5)};
  const Operands wanted = convolve(p, before);
  const DataType type = value_type(p.precision);
  const DeviceValues input(before.input, type), weights(before.weights, type), output(before.output, type);
  const auto plan = make_convolution_planner()->plan(p);
  const DeviceArray<char> workspace(plan->workspace_bytes());
  OwnStream stream;
  plan->run({input.get(), weights.get(), output.get()}, workspace.get(), stream);
  CHECK(input.values(stream) == wanted.input);
  CHECK(weights.values(stream) == wanted.weights);
  CHECK(output.values(stream) == wanted.output);
}

}  // namespace

TEST_CASE("convolutions in every pass, precision and shape") {
  for (const Precision precision : kPrecisions)
    for (const ConvolutionPass& pass : std::initializer_list<ConvolutionPass>{
             Forward{}, BackwardData::written, BackwardData::added, BackwardWeights::rounded}) {
      INFO("precision " << to_string(precision) << ", pass " << pass.index());
      check_convolution({pass, precision, 2, 8, 7, 6, 16, 3, 1, 1});
      check_convolution({pass, precision, 2, 16, 8, 9, 8, 3, 2, 1});
      check_convolution({pass, precision, 1, 8, 5, 5, 8, 1, 2, 0});
      check_convolution({pass, precision, 3, 8, 5, 5, 8, 5, 1, 2});
      check_convolution({pass, precision, 2, 8, 4, 6, 8, {1, 7}, 1, {0, 3}});
      check_convolution({pass, precision, 2, 8, 6, 5, 8, {3, 1}, 2, {1, 0}});
    }
}

TEST_CASE("convolutions that normalize their input and compute statistics") {
  const ConvolutionPass all[] = {Forward{Forward::normalized, true}, BackwardWeights::of_normalized};
  for (const ConvolutionPass& pass : all) {
    INFO("pass " << pass.index());
    ConvolutionProblem p{pass, Precision::fp16, 2, 8, 7, 6, 16, 3, 2, 1};
    const auto raw = small_numbers(p.batch * p.height * p.width * p.channels, 3), scale = small_numbers(8, 1),
               shift = small_numbers(8, 2);
    Operands before{raw, small_numbers(p.filters * p.kernel.area() * p.channels, 7),
                    small_numbers(p.batch * p.output_height() * p.output_width() * p.filters, 5)};
    const DeviceValues input(before.input, DataType::f16), weights(before.weights, DataType::f16),
        output(before.output, DataType::f16), scales(scale, DataType::f16), shifts(shift, DataType::f16);
    const DeviceValues sums(std::vector(16, 77.0f), DataType::f32), squares(std::vector(16, 77.0f), DataType::f32);
    for (std::size_t i = 0; i < raw.size(); ++i) before.input[i] = std::max(0.0f, scale[i % 8] * raw[i] + shift[i % 8]);
    const Operands wanted = convolve(p, before);  // the padding is 0, not the shift
    std::vector<float> wanted_sums(16), wanted_squares(16);
    for (std::size_t i = 0; i < wanted.output.size(); ++i) {
      wanted_sums[i % 16] += wanted.output[i];
      wanted_squares[i % 16] += wanted.output[i] * wanted.output[i];
    }

    const auto plan = make_convolution_planner()->plan(p);
    const DeviceArray<char> workspace(plan->workspace_bytes());
    OwnStream stream;
    plan->run({.input = input.get(),
               .weights = weights.get(),
               .output = output.get(),
               .scale = scales.get(),
               .shift = shifts.get(),
               .sums = sums.get(),
               .squares = squares.get()},
              workspace.get(), stream);
    CHECK(input.values(stream) == raw);
    CHECK(weights.values(stream) == wanted.weights);
    CHECK(output.values(stream) == wanted.output);
    if (p.is<Forward>()) CHECK(sums.values(stream) == wanted_sums);
    if (p.is<Forward>()) CHECK(squares.values(stream) == wanted_squares);
  }
}

TEST_CASE("convolutions that compute and store the end of a residual block") {
  const ConvolutionProblem p{Forward{Forward::block_end}, Precision::fp16, 2, 8, 7, 6, 16, 3, 2, 1};
  const auto x = small_numbers(p.batch * p.height * p.width * p.channels, 3), addend = small_numbers(x.size(), 2),
             scale = small_numbers(8, 1), shift = small_numbers(8, 2);
  Operands before{x, small_numbers(p.filters * p.kernel.area() * p.channels, 7),
                  std::vector(p.batch * p.output_height() * p.output_width() * p.filters, 77.0f)};
  for (std::size_t i = 0; i < x.size(); ++i)
    before.input[i] = std::max(0.0f, scale[i % 8] * x[i] + shift[i % 8] + addend[i]);
  const Operands wanted = convolve(p, before);

  const DeviceValues input(std::vector(x.size(), 77.0f), DataType::f16), weights(before.weights, DataType::f16),
      output(before.output, DataType::f16), values(x, DataType::f16), addends(addend, DataType::f16),
      scales(scale, DataType::f16), shifts(shift, DataType::f16);
  const auto plan = make_convolution_planner()->plan(p);
  const DeviceArray<char> workspace(plan->workspace_bytes());
  OwnStream stream;
  plan->run({.input = input.get(),
             .weights = weights.get(),
             .output = output.get(),
             .scale = scales.get(),
             .shift = shifts.get(),
             .norm_input = values.get(),
             .addend = addends.get()},
            workspace.get(), stream);
  CHECK(input.values(stream) == before.input);
  CHECK(output.values(stream) == wanted.output);
  CHECK(values.values(stream) == x);
  CHECK(addends.values(stream) == addend);
}

// If it adds, scale and shift need not be zeros here: the ReLU reads their sum with the stored output.
TEST_CASE("convolutions that differentiate a ReLU and compute the sums of a batch norm's gradient") {
  const bool adds = GENERATE(false, true);
  CAPTURE(adds);
  const BackwardData pass = adds ? BackwardData::summed_elsewhere : BackwardData::summed;
  const ConvolutionProblem p{pass, Precision::fp16, 2, 8, 7, 6, 16, 3, 2, 1};
  const std::size_t inputs = p.batch * p.height * p.width * p.channels;
  const Operands before{std::vector(inputs, 77.0f), small_numbers(p.filters * p.kernel.area() * p.channels, 7),
                        small_numbers(p.batch * p.output_height() * p.output_width() * p.filters, 5)};
  const auto x = small_numbers(inputs, 1), norm_output = small_numbers(inputs, 4), others = small_numbers(inputs, 2);
  // Of the 8 channels.
  const std::vector<float> mean{0, 1, -1, 2, 0, 1, 0, -1}, inverse{1, 0.5f, 2, 1, 4, 1, 0.5f, 2},
      scale{1, 2, -1, 0, 1, 3, -2, 1}, shift{0, 1, 0, 1, -2, 0, 1, -1};
  Operands wanted = convolve(p, before);
  std::vector<float> sum(8), normalized_sum(8);
  for (std::size_t i = 0; i < inputs; ++i) {
    const std::size_t c = i % 8;
    const float normalized = (x[i] - mean[c]) * inverse[c];
    if (adds) wanted.input[i] += others[i];
    if (scale[c] * normalized + shift[c] + (adds ? norm_output[i] : 0) < 0) wanted.input[i] = 0;  // passes at 0
    sum[c] += wanted.input[i];
    normalized_sum[c] += wanted.input[i] * normalized;
  }

  const DeviceValues input(before.input, DataType::f16), weights(before.weights, DataType::f16),
      output(before.output, DataType::f16), values(x, DataType::f16), norm_outputs(norm_output, DataType::f16),
      other_gradients(others, DataType::f16);
  const DeviceValues means(mean, DataType::f32), inverses(inverse, DataType::f32), scales(scale, DataType::f32),
      shifts(shift, DataType::f32);
  const std::vector rubbish(8, 77.0f);
  const DeviceValues sums(rubbish, DataType::f32), normalized_sums(rubbish, DataType::f32), a(rubbish, DataType::f32),
      b(rubbish, DataType::f32), c(rubbish, DataType::f32);
  const auto plan = make_convolution_planner()->plan(p);
  const DeviceArray<char> workspace(plan->workspace_bytes());
  OwnStream stream;
  plan->run({.input = input.get(),
             .weights = weights.get(),
             .output = output.get(),
             .norm_input = values.get(),
             .norm_output = adds ? norm_outputs.get() : nullptr,
             .gradient_of_others = adds ? other_gradients.get() : nullptr,
             .norm = {means.floats(), inverses.floats(), scales.floats(), shifts.floats(), sums.floats(),
                      normalized_sums.floats(), a.floats(), b.floats(), c.floats()}},
            workspace.get(), stream);
  CHECK(input.values(stream) == wanted.input);
  CHECK(values.values(stream) == x);
  CHECK(other_gradients.values(stream) == others);
  CHECK(sums.values(stream) == sum);
  CHECK(normalized_sums.values(stream) == normalized_sum);
}

TEST_CASE("matrix products in every precision, transposed or not") {
  constexpr std::size_t kRows = 16, kColumns = 24, kInner = 8;
  for (const Precision precision : kPrecisions)
    for (unsigned choice = 0; choice < 64; ++choice) {
      const auto chosen = [&](unsigned bit) { return (choice >> bit & 1) != 0; };
      const MatmulProblem p{.precision = precision,
                            .rows = kRows,
                            .columns = kColumns,
                            .inner = kInner,
                            .a_transposed = chosen(0),
                            .b_transposed = chosen(1),
                            .bias = chosen(2),
                            .function = chosen(3) ? Function::relu : Function::none,
                            .wide_output = chosen(4),
                            .accumulate = chosen(5)};
      INFO("precision " << to_string(precision) << ", choice " << choice);
      const auto a = small_numbers(kRows * kInner, 2), b = small_numbers(kInner * kColumns, 3);
      const auto bias = small_numbers(kColumns, 1), old = small_numbers(kRows * kColumns, 1);
      const float factor = 4;
      std::vector<float> wanted;
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t j = 0; j < kColumns; ++j) {
          float sum = 0;
          for (std::size_t k = 0; k < kInner; ++k)
            sum += a[p.a_transposed ? k * kRows + i : i * kInner + k] *
                   b[p.b_transposed ? j * kInner + k : k * kColumns + j];
          sum = sum * factor + (p.accumulate ? old[i * kColumns + j] : 0) + (p.bias ? bias[j] : 0);
          wanted.push_back(chosen(3) ? std::max(sum, 0.0f) : sum);
        }
      const DataType type = value_type(precision);
      const DataType output_type = p.wide_output ? DataType::f32 : type;
      const DeviceValues device_a(a, type), device_b(b, type), device_bias(bias, output_type);
      const DeviceValues output(old, output_type), scale({1, factor}, DataType::f32);
      const auto plan = make_matmul_planner()->plan(p);
      const DeviceArray<char> workspace(plan->workspace_bytes());
      OwnStream stream;
      plan->run({.a = device_a.get(),
                 .b = device_b.get(),
                 .output = output.get(),
                 .bias = device_bias.get(),
                 .factor = scale.floats() + 1},
                workspace.get(), stream);
      CHECK(output.values(stream) == wanted);
    }
}

TEST_CASE("GELU of a matrix product, and its gradient") {
  const auto gelu = [](double x) { return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2; };
  constexpr double kStep = 1e-4;
  const auto slope = [&](double x) { return (gelu(x + kStep) - gelu(x - kStep)) / (2 * kStep); };
  for (const Precision precision : {Precision::bf16, Precision::fp16})
    for (const Function function : {Function::gelu, Function::gelu_and_input, Function::gelu_backward}) {
      const bool backward = function == Function::gelu_backward;
      const MatmulProblem p{
          .precision = precision, .rows = 5, .columns = 8, .inner = 8, .bias = !backward, .function = function};
      INFO("precision " << to_string(precision) << ", function " << static_cast<int>(function));
      const auto a = small_numbers(p.rows * p.inner, 5), b = small_numbers(p.inner * p.columns, 7);
      const auto bias = small_numbers(p.columns, 1), before = small_numbers(p.rows * p.columns, 1);
      const DataType type = value_type(precision);
      const DeviceValues device_a(a, type), device_b(b, type), device_bias(bias, type);
      const DeviceValues output(before, type), input(before, type);
      const auto plan = make_matmul_planner()->plan(p);
      const DeviceArray<char> workspace(plan->workspace_bytes());
      OwnStream stream;
      plan->run({device_a.get(), device_b.get(), output.get(), device_bias.get(), input.get()}, workspace.get(),
                stream);
      const auto made = output.values(stream), inputs = input.values(stream);
      for (std::size_t i = 0; i < made.size(); ++i) {
        float sum = backward ? 0 : bias[i % p.columns];
        for (std::size_t k = 0; k < p.inner; ++k)
          sum += a[i / p.columns * p.inner + k] * b[k * p.columns + i % p.columns];
        const double wanted = backward ? sum * slope(before[i]) : gelu(sum);
        CHECK(made[i] == Approx(wanted).epsilon(0x1p-8).margin(1e-4));
        CHECK(inputs[i] == (function == Function::gelu_and_input ? sum : before[i]));
      }
    }
}

TEST_CASE("tf32 rounds factors to 10 bits") {
  const std::vector<float> values{1, 1 + 0x1p-10f, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, -1 - 0x1p-12f, INFINITY};
  CHECK(emulated::load_factors(values.data(), values.size(), Precision::tf32) ==
        std::vector<float>{1, 1 + 0x1p-10f, 1, 1 + 0x1p-9f, -1, INFINITY});
  CHECK(emulated::load_factors(values.data(), values.size(), Precision::fp32) == values);
}

TEST_CASE("planners refuse what the vendor's library does not support") {
  const auto convolutions = make_convolution_planner();
  const auto matmuls = make_matmul_planner();
  using annulus::Error;
  CHECK_THROWS_AS(convolutions->plan({Forward{}, Precision::bf16, 1, 4, 4, 4, 8, 1, 1, 0}), Error);
  CHECK_THROWS_AS(convolutions->plan({Forward{}, Precision::bf16, 1, 8, 4, 4, 12, 1, 1, 0}), Error);
  CHECK_NOTHROW(convolutions->plan({Forward{}, Precision::fp32, 1, 4, 4, 4, 12, 1, 1, 0}));
  CHECK_THROWS_AS(convolutions->plan({Forward{}, Precision::fp32, 1, 4, 4, 4, 4, 5, 1, 0}), Error);
  CHECK_THROWS_AS(convolutions->plan({.pass = Forward{.statistics = true},
                                      .precision = Precision::bf16,
                                      .batch = 1,
                                      .channels = 8,
                                      .height = 4,
                                      .width = 4,
                                      .filters = 8,
                                      .kernel = 1,
                                      .stride = 1,
                                      .padding = 0}),
                  Error);
  CHECK_THROWS_AS(matmuls->plan({Precision::fp16, 8, 8, 12}), Error);
  CHECK_NOTHROW(matmuls->plan({Precision::fp32, 6, 8, 8}));
  CHECK_THROWS_AS(matmuls->plan({Precision::fp32, 8, 6, 8}), Error);
  CHECK_THROWS_AS(matmuls->plan({.precision = Precision::bf16,
                                 .rows = 8,
                                 .columns = 8,
                                 .inner = 8,
                                 .function = Function::gelu_backward,
                                 .accumulate = true}),
                  Error);

  const auto plan = matmuls->plan({Precision::fp32, 4, 4, 4});
  const DeviceArray<float> a(20), b(16), output(16);
  const DeviceArray<char> workspace(plan->workspace_bytes());
  OwnStream stream;
  std::vector<float> host(16);
  const auto run = [&](const float* first, const float* second) {
    plan->run({first, second, output.get()}, workspace.get(), stream);
  };
  CHECK_THROWS_AS(run(a.get() + 1, b.get()), Error);
  CHECK_THROWS_AS(run(a.get() + 8, b.get()), Error);
  CHECK_THROWS_AS(run(a.get(), host.data()), Error);
  CHECK_NOTHROW(run(a.get() + 4, b.get()));
}
