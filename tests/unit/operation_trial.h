#pragma once

// Checks an operation against plain loops in double precision (naive_operation.h): its output, and its gradients
// against central differences of those loops.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/cpu/loops/vectors.h"
#include "kernels/device.h"
#include "kernels/neighbour_fusion.h"
#include "tests/unit/naive_operation.h"
#include "tests/unit/random_values.h"
#include "tests/unit/test_device.h"

namespace annulus::test {

// Maximum error of float32 sums over some hundred products, relative to the tensor's largest element.
constexpr double kTolerance = 1e-5;

// A tensor on the device. Whole numbers, such as samples' keys, are not written.
struct Operand {
  Operand(Device& on, const TensorSpec& layout, const std::vector<float>& values)
      : device(on), spec(layout), memory(on.allocate(spec.layout->bytes())) {
    if (spec.type != DataType::i32) device.write(values, spec, memory.view());
  }

  std::vector<float> read() const {
    std::vector<float> values(elements(spec.shape));
    device.read(spec, memory.view(), values);
    return values;
  }

  // Whether there are only zeros in the padding.
  bool clean() const {
    const Operand copy(device, spec, read());
    return bytes_of(device, copy.memory.view()) == bytes_of(device, memory.view());
  }

  Tensor tensor() const {
    const auto values = read();
    return {spec.shape, {values.begin(), values.end()}};
  }

  Device& device;
  TensorSpec spec;
  Buffer memory;
};

// Whether oneDNN chooses the layouts that our kernels are compiled for.
inline bool has_our_layouts() {
  return !on_gpu() && (cpu::kChannelBlock == 16) == (__builtin_cpu_supports("avx512f") != 0);
}

// Images of this shape in the layout of a network after its first convolution.
inline TensorSpec blocked(Device& device, const Shape& shape) {
  const Convolution first{.channels = shape[1], .kernel = 3, .padding = 1};
  return device.plan(first, {device.values({shape[0], 3, shape[2], shape[3]})}, Mode::inference, {})->output();
}

// Also between the values.
inline void fill_with_nan(Device& device, DeviceView memory) {
  const std::vector<std::byte> ones(memory.bytes, std::byte{255});
  device.upload(ones, memory);
}

// An operation over random operands. Memory that it must write is filled with garbage before.
struct Trial {
  Trial(Device& device, const Operation& what, const std::vector<TensorSpec>& specs, bool wanted = true,
        Mode mode = Mode::training, const std::vector<TensorSpec>& laid_out = {})
      : operation(what), op(device.plan(operation, specs, mode, laid_out)) {
    std::uint64_t seed = 1;
    const auto random = [&](const TensorSpec& spec) {
      return Operand(device, spec, random_values(elements(spec.shape), ++seed));
    };
    const auto rubbish = [&](const TensorSpec& spec) {
      return Operand(device, spec, std::vector<float>(elements(spec.shape), 1e6f));
    };
    const auto nothing = [&](const TensorSpec& spec) {
      Operand operand = rubbish(spec);
      fill_with_nan(device, operand.memory.view());
      return operand;
    };
    for (const TensorSpec& spec : specs) inputs.push_back(random(spec));
    for (const TensorSpec& spec : specs) input_gradients.push_back(nothing(spec));
    for (const TensorSpec& spec : op->parameters()) parameters.push_back(random(spec));
    for (const TensorSpec& spec : op->parameters()) parameter_gradients.push_back(rubbish(spec));
    output.push_back(nothing(op->output()));
    output_gradient.push_back(random(op->output()));
    seeded = output_gradient[0].tensor().values;

    for (const Operand& o : inputs) bindings.inputs.push_back(o.memory.view());
    bindings.output = output[0].memory.view();
    for (const Operand& o : parameters) bindings.parameters.push_back(o.memory.view());
    if (mode == Mode::training) {
      for (const Operand& o : parameter_gradients) bindings.parameter_gradients.push_back(o.memory.view());
      for (const Operand& o : input_gradients)
        bindings.input_gradients.push_back(wanted ? o.memory.view() : DeviceView{});
      bindings.output_gradient = output_gradient[0].memory.view();
    } else {
      bindings.input_gradients.resize(inputs.size());
    }
    scratch = device.allocate(op->info().scratch_bytes);
    bindings.scratch = scratch.view();
    op->bind(bindings);
  }

  // Runs forward, `between`, and backward over the initial operands with these bindings. Returns the contents of the
  // output and of the inputs' and the parameters' gradients. `second`: memory for a half of the output's gradient.
  template <class Between>
  std::vector<std::vector<std::byte>> run(const Bindings& bound, const Between& between, DeviceView second = {}) {
    std::uint64_t seed = 1;
    for (Operand& o : inputs) o.device.write(random_values(elements(o.spec.shape), ++seed), o.spec, o.memory.view());
    Operand& gradient = output_gradient[0];
    std::vector<float> seeds(seeded.begin(), seeded.end());
    if (second) {
      for (float& value : seeds) value /= 2;
      gradient.device.write(seeds, gradient.spec, second);
    }
    gradient.device.write(seeds, gradient.spec, bound.output_gradient);
    if (auto* fusion = dynamic_cast<NeighbourFusion*>(op.get()))
      fusion->bind_neighbours({.second_output_gradient = second});
    op->bind(bound);
    op->forward();
    std::vector<std::vector<std::byte>> made{bytes_of(gradient.device, bound.output)};
    between();
    op->backward(1);
    for (const DeviceView view : bound.input_gradients)
      if (view) made.push_back(bytes_of(gradient.device, view));
    for (const DeviceView view : bound.parameter_gradients) made.push_back(bytes_of(gradient.device, view));
    return made;
  }

  static std::vector<Tensor> tensors(const std::vector<Operand>& operands) {
    std::vector<Tensor> all;
    for (const Operand& o : operands) all.push_back(o.tensor());
    return all;
  }

  // The sum of the outputs, each times the gradient that backward was seeded with.
  double objective(const std::vector<Tensor>& at_inputs, const std::vector<Tensor>& at_parameters) const {
    const Tensor made = naive_forward(operation, at_inputs, at_parameters);
    double sum = 0;
    for (std::size_t i = 0; i < made.values.size(); ++i) sum += seeded[i] * made.values[i];
    return sum;
  }

  Operation operation;
  std::unique_ptr<Op> op;
  std::vector<Operand> inputs, input_gradients, parameters, parameter_gradients, output, output_gradient;
  Buffer scratch;
  std::vector<double> seeded;
  Bindings bindings;
};

// Checks that a convolution or dense layer without an input gradient is bit-identical otherwise. Returns the scratch
// memory that it saves.
template <class Layer>
std::size_t scratch_saved(Device& device, Layer layer, const TensorSpec& input) {
  Trial with(device, layer, {input}, false);
  layer.input_gradient = false;
  Trial without(device, layer, {input}, false);
  CHECK(without.run(without.bindings, [] {}) == with.run(with.bindings, [] {}));
  REQUIRE(without.op->info().scratch_bytes <= with.op->info().scratch_bytes);
  return with.op->info().scratch_bytes - without.op->info().scratch_bytes;
}

inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

// NaN counts as infinitely far.
inline double distance(const std::vector<double>& ours, const std::vector<double>& expected) {
  REQUIRE(ours.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double off = std::abs(ours[i] - expected[i]);
    most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
  }
  return most;
}

inline void check_output(const Trial& trial) {
  const auto expected =
      naive_forward(trial.operation, Trial::tensors(trial.inputs), Trial::tensors(trial.parameters)).values;
  CHECK(distance(trial.output[0].tensor().values, expected) <= kTolerance * std::max(1.0, largest(expected)));
  CHECK(trial.output[0].clean());
}

// Compares the gradient with respect to a tensor (`at`, one of those that `objective` reads) with central differences:
// for some of its elements one by one, and for all of them together along a random direction. The step is too small for
// a random operand to cross a kink.
template <class Objective>
void check_gradient(const Operand& gradient, Tensor& at, const Objective& objective) {
  constexpr double kStep = 1e-6;
  constexpr std::size_t kSingles = 6;
  const auto ours = gradient.tensor().values;
  const auto original = at.values;
  const auto along = [&](const auto& direction) {
    for (std::size_t i = 0; i < original.size(); ++i) at.values[i] = original[i] + kStep * direction(i);
    const double above = objective();
    for (std::size_t i = 0; i < original.size(); ++i) at.values[i] = original[i] - kStep * direction(i);
    const double below = objective();
    at.values = original;
    return (above - below) / (2 * kStep);
  };
  // Elements are sums of many terms, some of which cancel, so errors are relative to the largest element.
  double scale = 1;
  std::vector<std::pair<std::size_t, double>> singles;
  const std::size_t stride = (ours.size() + kSingles - 1) / kSingles;
  for (std::size_t i = 0; i < ours.size(); i += stride) {
    singles.emplace_back(i, along([&](std::size_t k) { return k == i ? 1.0 : 0.0; }));
    scale = std::max(scale, std::abs(singles.back().second));
  }
  for (const auto& [i, single] : singles) {
    CAPTURE(i, ours[i], single, scale);
    CHECK(std::abs(ours[i] - single) <= kTolerance * scale);
  }
  const auto direction = random_values(ours.size(), 1000);
  const double expected = along([&](std::size_t i) { return direction[i]; });
  double sum = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) sum += ours[i] * direction[i];
  CAPTURE(sum, expected);
  CHECK(std::abs(sum - expected) <= kTolerance * scale * std::sqrt(static_cast<double>(ours.size())));
  CHECK(gradient.clean());
}

// Checks that backward can add to the gradient of input `k`.
inline void check_addition(Trial& trial, std::size_t k) {
  const Operand& gradient = trial.input_gradients[k];
  trial.run(trial.bindings, [] {});
  std::vector<double> expected = gradient.tensor().values;
  for (double& value : expected) value += 1;
  gradient.device.write(std::vector<float>(expected.size(), 1), gradient.spec, gradient.memory.view());
  Bindings bindings = trial.bindings;
  bindings.accumulate.assign(trial.inputs.size(), false);
  bindings.accumulate[k] = true;
  trial.run(bindings, [] {});
  CHECK(distance(gradient.tensor().values, expected) <= kTolerance * std::max(1.0, largest(expected)));
}

// Checks an operation's properties on memory that it does not need or can reuse: results must be bit-identical.
inline void check_memory(Trial& trial) {
  const auto nothing = [] {};
  const auto expected = trial.run(trial.bindings, nothing);
  const Op& op = *trial.op;
  Device& device = trial.output[0].device;
  CHECK(trial.run(trial.bindings, [&] {
    for (std::size_t k = 0; k < trial.inputs.size(); ++k)
      if (!op.info().input(k).backward_reads) fill_with_nan(device, trial.bindings.inputs[k]);
    if (!op.info().backward_reads_output) fill_with_nan(device, trial.bindings.output);
    fill_with_nan(device, trial.bindings.scratch);
  }) == expected);
  for (std::size_t k = 0; k < trial.inputs.size(); ++k) {
    CAPTURE(k);
    Bindings bindings = trial.bindings;
    bindings.output = bindings.inputs[k];
    if (op.info().input(k).output_may_overwrite && !op.info().input(k).backward_reads)
      CHECK(trial.run(bindings, nothing) == expected);
    bindings = trial.bindings;
    if (!bindings.input_gradients[k]) continue;
    bindings.input_gradients[k] = bindings.output_gradient;
    if (op.info().input(k).gradient_may_overwrite) CHECK(trial.run(bindings, nothing) == expected);
    if (op.info().input(k).adds_to_gradient) check_addition(trial, k);
  }
  if (!op.info().fused.second_gradient) return;
  const Buffer second = device.allocate(trial.bindings.output_gradient.bytes);
  CHECK(trial.run(trial.bindings, nothing, second.view()) == expected);
  CHECK(trial.run(trial.bindings, nothing) == expected);  // and the operation no longer refers to `second`
}

// `differentiable`: how many of the parameters, from the first, have gradients (not statistics) in their slots.
inline void check_trial(Trial& trial, bool wanted, std::size_t differentiable) {
  trial.op->forward();
  check_output(trial);
  trial.op->backward(1);
  auto inputs = Trial::tensors(trial.inputs);
  auto parameters = Trial::tensors(trial.parameters);
  const auto objective = [&] { return trial.objective(inputs, parameters); };
  for (std::size_t i = 0; wanted && i < inputs.size(); ++i) {
    INFO("gradient of input " << i);
    check_gradient(trial.input_gradients[i], inputs[i], objective);
  }
  for (std::size_t i = 0; i < differentiable; ++i) {
    INFO("gradient of parameter " << i);
    check_gradient(trial.parameter_gradients[i], parameters[i], objective);
  }
  check_memory(trial);
}

inline void check_operation(Device& device, const Operation& operation, const std::vector<TensorSpec>& inputs,
                            bool wanted = true) {
  Trial trial(device, operation, inputs, wanted);
  check_trial(trial, wanted, trial.parameters.size());
}

}  // namespace annulus::test
