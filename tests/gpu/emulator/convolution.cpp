#include <cstring>

#include "kernels/base/error.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/vendor/convolution_plan.h"
#include "tests/gpu/emulator/device_memory.h"
#include "tests/gpu/emulator/emulated_stream.h"
#include "tests/gpu/emulator/values.h"

// Replaces cuDNN's convolutions by direct ones.

namespace annulus::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = 4096;  // not needed, but overwritten, to detect users of stale data

std::size_t input_count(const ConvolutionProblem& p) {
  return p.batch * p.height * p.width * p.channels;
}
std::size_t weights_count(const ConvolutionProblem& p) {
  return p.filters * p.kernel.area() * p.channels;
}
std::size_t output_count(const ConvolutionProblem& p) {
  return p.batch * p.output_height() * p.output_width() * p.filters;
}

// Calls visit(input, weights, output) for each pair of pixels that a position of the kernel connects, with their
// offsets in values; the offset of the weights is for the first filter.
template <class Visit>
void for_each_product(const ConvolutionProblem& p, const Visit& visit) {
  const std::size_t rows = p.output_height(), columns = p.output_width();
  for (std::size_t output = 0; output < p.batch * rows * columns; ++output) {
    const std::size_t n = output / (rows * columns), row = output / columns % rows, column = output % columns;
    for (std::size_t place = 0; place < p.kernel.area(); ++place) {
      // Positions in the padding wrap around to more than the extent.
      const std::size_t y = row * p.stride.height + place / p.kernel.width * p.dilation.height - p.padding.top;
      const std::size_t x = column * p.stride.width + place % p.kernel.width * p.dilation.width - p.padding.left;
      if (y < p.height && x < p.width)
        visit(((n * p.height + y) * p.width + x) * p.channels, place * p.channels, output * p.filters);
    }
  }
}

// {filters, rows, columns, channels} -> {rows, columns, channels, filters}.
std::vector<float> filters_innermost(const ConvolutionProblem& p, const std::vector<float>& weights) {
  const std::size_t each = weights.size() / p.filters;
  std::vector<float> turned(weights.size());
  for (std::size_t f = 0; f < p.filters; ++f)
    for (std::size_t i = 0; i < each; ++i) turned[i * p.filters + f] = weights[f * each + i];
  return turned;
}

std::vector<float> forward(const ConvolutionProblem& p, const std::vector<float>& x, const std::vector<float>& w) {
  const std::vector<float> turned = filters_innermost(p, w);
  std::vector<float> sums(output_count(p));
  for_each_product(p, [&](std::size_t input, std::size_t weights, std::size_t output) {
    for (std::size_t c = 0; c < p.channels; ++c)
      for (std::size_t f = 0; f < p.filters; ++f)
        sums[output + f] += x[input + c] * turned[(weights + c) * p.filters + f];
  });
  return sums;
}

std::vector<float> backward_data(const ConvolutionProblem& p, const std::vector<float>& w,
                                 const std::vector<float>& dy) {
  const std::size_t each = w.size() / p.filters;
  std::vector<float> sums(input_count(p));
  for_each_product(p, [&](std::size_t input, std::size_t weights, std::size_t output) {
    for (std::size_t f = 0; f < p.filters; ++f)
      for (std::size_t c = 0; c < p.channels; ++c) sums[input + c] += dy[output + f] * w[f * each + weights + c];
  });
  return sums;
}

std::vector<float> backward_weights(const ConvolutionProblem& p, const std::vector<float>& x,
                                    const std::vector<float>& dy) {
  const std::size_t each = weights_count(p) / p.filters;
  std::vector<float> sums(weights_count(p));
  for_each_product(p, [&](std::size_t input, std::size_t weights, std::size_t output) {
    for (std::size_t f = 0; f < p.filters; ++f)
      for (std::size_t c = 0; c < p.channels; ++c) sums[f * each + weights + c] += dy[output + f] * x[input + c];
  });
  return sums;
}

// max(0, scale x + shift), with an addend at the end of a block, rounded as a tensor in memory would be.
std::vector<float> normalized(const ConvolutionProblem& p, std::vector<float> x, const ConvolutionOperands& operands) {
  const DataType type = value_type(p.precision);
  const auto scale = emulated::load(operands.scale, p.channels, type);
  const auto shift = emulated::load(operands.shift, p.channels, type);
  const auto addend = p.ends_block() ? emulated::load(operands.addend, x.size(), type) : std::vector<float>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float end = scale[i % p.channels] * x[i] + shift[i % p.channels] + addend[i];
    x[i] = end <= 0 ? 0 : end;  // also NaN
  }
  std::vector<std::byte> rounded(x.size() * size_of(type));
  emulated::store(x, rounded.data(), type);
  return emulated::load(rounded.data(), x.size(), type);
}

void write_statistics(const ConvolutionProblem& p, const ConvolutionOperands& operands) {
  std::vector<float> sums(p.filters), squares(p.filters);
  const auto values = emulated::load(operands.output, output_count(p), value_type(p.precision));
  for (std::size_t i = 0; i < values.size(); ++i) {
    sums[i % p.filters] += values[i];
    squares[i % p.filters] += values[i] * values[i];
  }
  emulated::store(sums, operands.sums, DataType::f32);
  emulated::store(squares, operands.squares, DataType::f32);
}

// Returns the gradient with zeros where the batch norm's ReLU was not active, and writes its sums.
std::vector<float> through_norm(const ConvolutionProblem& p, std::vector<float> gradient,
                                const ConvolutionOperands& operands) {
  const NormGradient& norm = operands.norm;
  const auto x = emulated::load(operands.norm_input, input_count(p), value_type(p.precision));
  std::vector<float> sums(p.channels), normalized_sums(p.channels);
  const auto stored = [&](void* values) {
    return p.adds_elsewhere() ? emulated::load(values, input_count(p), value_type(p.precision))
                              : std::vector<float>(input_count(p));
  };
  const auto output = stored(operands.norm_output), others = stored(operands.gradient_of_others);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const std::size_t c = i % p.channels;
    const float normalized = norm.inverse[c] * (x[i] - norm.mean[c]);
    gradient[i] += others[i];
    if (norm.scale[c] * normalized + norm.shift[c] + output[i] < 0) gradient[i] = 0;  // as measured on an H200
    sums[c] += gradient[i];
    normalized_sums[c] += gradient[i] * normalized;
  }
  emulated::store(sums, norm.sum, DataType::f32);
  emulated::store(normalized_sums, norm.normalized_sum, DataType::f32);
  for (float* unused : {norm.gradient_factor, norm.value_factor, norm.constant})
    std::memset(unused, 0xff, p.channels * sizeof(float));
  return gradient;
}

void compute(const ConvolutionProblem& p, const ConvolutionOperands& operands) {
  const auto x = [&] {
    std::vector<float> values = emulated::load_factors(operands.input, input_count(p), p.precision);
    return p.normalizes() ? normalized(p, std::move(values), operands) : values;
  };
  const auto w = [&] { return emulated::load_factors(operands.weights, weights_count(p), p.precision); };
  const auto dy = [&] { return emulated::load_factors(operands.output, output_count(p), p.precision); };
  const DataType type = value_type(p.precision);
  if (p.ends_block())
    emulated::store(normalized(p, emulated::load(operands.norm_input, input_count(p), type), operands), operands.input,
                    type);
  if (p.is<Forward>()) {
    emulated::store(forward(p, x(), w()), operands.output, type);
    if (p.has_statistics()) write_statistics(p, operands);
  } else if (p.is<BackwardWeights>()) {
    std::vector<float> sums = backward_weights(p, x(), dy());
    if (!p.has_wide_weights()) return emulated::store(sums, operands.weights, type);
    const float factor = emulated::load(operands.factor, 1, DataType::f32)[0];
    for (float& sum : sums) sum *= factor;
    emulated::store(sums, operands.weights, DataType::f32);
  } else {
    std::vector<float> sums = backward_data(p, w(), dy());
    if (p.is(BackwardData::added))
      std::ranges::transform(sums, emulated::load(operands.input, sums.size(), type), sums.begin(), std::plus());
    if (p.sums_gradient()) sums = through_norm(p, std::move(sums), operands);
    emulated::store(sums, operands.input, type);
  }
}

class EmulatedConvolution final : public ConvolutionPlan {
 public:
  explicit EmulatedConvolution(const ConvolutionProblem& problem) : problem_(problem) {}

  std::size_t workspace_bytes() const override { return kWorkspaceBytes; }

  void run(const ConvolutionOperands& operands, void* workspace, cudaStream_t stream) override {
    const std::size_t bytes = size_of(value_type(problem_.precision));
    const std::size_t weight_bytes = problem_.has_wide_weights() ? sizeof(float) : bytes;
    const auto accessible = [](const std::string& operand, void* address, std::size_t count, std::size_t value_bytes) {
      emulated::check_operand(("a convolution's " + operand).c_str(), address, count, value_bytes);
      return emulated::accessible(address);
    };
    ConvolutionOperands there{accessible("input", operands.input, input_count(problem_), bytes),
                              accessible("weights", operands.weights, weights_count(problem_), weight_bytes),
                              accessible("output", operands.output, output_count(problem_), bytes)};
    if (problem_.normalizes() || problem_.ends_block()) {
      there.scale = accessible("scale", operands.scale, problem_.channels, bytes);
      there.shift = accessible("shift", operands.shift, problem_.channels, bytes);
    }
    if (problem_.ends_block()) {
      there.norm_input = accessible("batch norm's input", operands.norm_input, input_count(problem_), bytes);
      there.addend = accessible("addend", operands.addend, input_count(problem_), bytes);
    }
    if (problem_.has_statistics()) {
      there.sums = accessible("sums", operands.sums, problem_.filters, sizeof(float));
      there.squares = accessible("sums of squares", operands.squares, problem_.filters, sizeof(float));
    }
    if (problem_.sums_gradient()) {
      there.norm_input = accessible("batch norm's input", operands.norm_input, input_count(problem_), bytes);
      const auto floats = [&](const std::string& operand, float* address) {
        return static_cast<float*>(accessible("batch norm's " + operand, address, problem_.channels, sizeof(float)));
      };
      const NormGradient& norm = operands.norm;
      there.norm = {floats("mean", norm.mean),
                    floats("inverse", norm.inverse),
                    floats("scale", norm.scale),
                    floats("shift", norm.shift),
                    floats("sum", norm.sum),
                    floats("normalized sum", norm.normalized_sum),
                    floats("gradient factor", norm.gradient_factor),
                    floats("value factor", norm.value_factor),
                    floats("constant", norm.constant)};
    }
    if (problem_.adds_elsewhere()) {
      there.norm_output = accessible("batch norm's output", operands.norm_output, input_count(problem_), bytes);
      there.gradient_of_others =
          accessible("others' gradient", operands.gradient_of_others, input_count(problem_), bytes);
    }
    if (problem_.has_wide_weights()) {
      emulated::check_operand("a convolution's factor", operands.factor, 1, sizeof(float), sizeof(float));
      there.factor = emulated::accessible(operands.factor);
    }
    void* spoiled = accessible("workspace", workspace, kWorkspaceBytes, 1);
    check(emulated::enqueue(stream, [=, problem = problem_] {
      std::memset(spoiled, 0xff, kWorkspaceBytes);
      compute(problem, there);
    }));
  }

 private:
  ConvolutionProblem problem_;
};

// If plans are chosen by measurements and need not be deterministic, all fusions are that cuDNN has plans for on an
// H200: it normalizes inputs only along with statistics, adds gradients to a strided convolution's input only without
// sums, and writes wide weights only if inputs are not normalized. Other fusions are our own products'.
class EmulatedConvolutions final : public ConvolutionPlanner {
 public:
  explicit EmulatedConvolutions(const Tuning& tuning)
      : measures_(!tuning.file.empty()), fuses_(measures_ && !tuning.deterministic) {}

  std::unique_ptr<ConvolutionPlan> plan(const ConvolutionProblem& p) override {
    emulated::check_multiple("channels of a convolution", p.channels, p.precision);
    emulated::check_multiple("filters of a convolution", p.filters, p.precision);
    if (p.batch == 0 || p.kernel.area() == 0 || p.stride.area() == 0)
      fail("a convolution has no batch, kernel or stride");
    if (p.window_height() > p.height + p.padding.height() || p.window_width() > p.width + p.padding.width())
      fail("a convolution's window of {}x{} does not fit {}x{} pixels", p.window_height(), p.window_width(), p.height,
           p.width);
    if (p.is_fused() && p.precision != Precision::fp16) fail("convolutions do passes of batch norms in fp16 only");
    if (p.has_wide_weights() && (value_type(p.precision) == DataType::f32 || !p.is_product()))
      fail("convolutions write float32 only from 16 bits, with 1x1 kernels");
    return std::make_unique<EmulatedConvolution>(p);
  }

  ConvolutionPasses choose_passes(const ConvolutionProblem& p, const NormsBeside& norms) override {
    ConvolutionPasses passes;
    if (measures_ && p.is_product()) passes.backward_weights = BackwardWeights::wide;
    if (!fuses_ || p.precision != Precision::fp16) return measures_ ? with_own_products(passes, p, norms) : passes;
    passes.forward.statistics = norms.after;
    if (norms.before == NormsBeside::rectified) {
      passes.backward_data = BackwardData::summed;
      if (!norms.after) return passes;
      passes.forward.input = Forward::normalized;
      passes.backward_weights = BackwardWeights::of_normalized;
    } else if (norms.before == NormsBeside::block_end && p.stride.area() == 1) {
      passes.backward_data = BackwardData::summed_elsewhere;
      if (norms.after) passes.forward.input = Forward::block_end;
    }
    return passes;
  }

 private:
  static ConvolutionPasses with_own_products(ConvolutionPasses passes, const ConvolutionProblem& p,
                                             const NormsBeside& norms) {
    if (!(passes.own_products = is_own_product(p) && norms != NormsBeside{})) return passes;
    passes.forward.statistics = norms.after;
    if (norms.before == NormsBeside::rectified) {
      passes.backward_data = BackwardData::summed;
      if (norms.after) passes.forward.input = Forward::normalized;
    } else if (norms.before == NormsBeside::block_end) {
      passes.backward_data = BackwardData::summed_elsewhere;
      passes.forward.input = Forward::block_end;
    }
    return passes;
  }

  bool measures_, fuses_;
};

}  // namespace

std::unique_ptr<ConvolutionPlanner> make_convolution_planner(const Tuning& tuning, std::shared_ptr<TuningBudget>) {
  return std::make_unique<EmulatedConvolutions>(tuning);
}

std::vector<std::unique_ptr<ConvolutionPlan>> all_convolution_plans(const ConvolutionProblem& problem) {
  std::vector<std::unique_ptr<ConvolutionPlan>> all;
  all.push_back(problem.is_own() ? plan_own_product(problem) : make_convolution_planner()->plan(problem));
  return all;
}

}  // namespace annulus::cuda
