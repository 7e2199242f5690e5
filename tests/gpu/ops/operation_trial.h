#pragma once

// Checks a GPU operation against its CPU counterpart, over random operands that both value types represent exactly:
// output, gradients, zero padding, and bit-identical repetition.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "kernels/neighbour_fusion.h"
#include "tests/gpu/ops/gpu.h"
#include "tests/gpu/ops/reference.h"
#include "tests/unit/random_values.h"

namespace annulus::test {

// How the inputs' gradients are written.
enum class Wanted { written, added_to, none };

inline std::unique_ptr<Op> plan(const Operation& operation, const std::vector<TensorSpec>& inputs, Mode mode,
                                Gpu& gpu) {
  return cuda::plan_any(operation, inputs, mode, gpu.context);
}

// An int32 tensor: windows of tokens, or positions.
struct Index {
  Shape shape;
  std::vector<std::int32_t> values;
};

// An operation over random operands, and an index as the last input if there is one. Memory that it must write is
// filled with garbage before.
struct Trial {
  Trial(Gpu& gpu, const Operation& operation, const std::vector<Shape>& shapes, Wanted wanted,
        Mode mode = Mode::training, const Index& index = {}) {
    const DataType type = gpu.context.type();
    std::uint64_t seed = 1;
    const auto random = [&](const Shape& shape) { return rounded(random_values(elements(shape), ++seed), type); };
    const auto rubbish = [&](const TensorSpec& spec) {
      return GpuTensor(gpu, spec, Values(elements(spec.shape), 77.0f));
    };
    std::vector<TensorSpec> specs;
    for (const Shape& shape : shapes) specs.push_back(cuda::value_spec(shape, type));
    std::vector<TensorSpec> all = specs;
    if (!index.values.empty())
      all.push_back({index.shape, DataType::i32, std::make_shared<cuda::Plain>(index.shape, DataType::i32)});
    op = plan(operation, all, mode, gpu);
    if (auto* fusion = dynamic_cast<NeighbourFusion*>(op.get())) fusion->fuse_neighbours({});
    for (const TensorSpec& spec : specs) {
      input_values.push_back(random(spec.shape));
      inputs.emplace_back(gpu, spec, input_values.back());
      before.push_back(random(spec.shape));
      input_gradients.emplace_back(gpu, spec, before.back());
    }
    for (const TensorSpec& spec : op->parameters()) {
      parameter_values.push_back(random(spec.shape));
      parameters.emplace_back(gpu, spec, parameter_values.back());
      const TensorSpec copy{spec.shape, type, spec.layout};
      copies.push_back(copy_of(gpu, spec, parameter_values.back()));
      parameter_gradients.push_back(rubbish(spec));
    }
    output.push_back(rubbish(op->output()));
    gradient_values = random(op->output().shape);
    Values scaled = gradient_values;
    for (float& value : scaled) value *= gpu.scale();
    output_gradient.emplace_back(gpu, op->output(), scaled);

    for (const GpuTensor& t : inputs) bindings.inputs.push_back(t.view());
    if (!index.values.empty()) {
      upload(gpu.context, index.values.data(), index.values.size() * sizeof index.values[0], indices);
      bindings.inputs.push_back(indices.view());
    }
    bindings.output = output[0].view();
    for (const GpuTensor& t : parameters) bindings.parameters.push_back(t.view());
    for (const Buffer& copy : copies) bindings.copies.push_back(copy.view());
    if (mode == Mode::training) {
      for (const GpuTensor& t : parameter_gradients) bindings.parameter_gradients.push_back(t.view());
      bindings.output_gradient = output_gradient[0].view();
      bindings.accumulate.assign(inputs.size(), wanted == Wanted::added_to);
    }
    for (const GpuTensor& t : input_gradients)
      bindings.input_gradients.push_back(wanted == Wanted::none || mode == Mode::inference ? DeviceView{} : t.view());
    bindings.input_gradients.resize(all.size());
    if (op->info().scratch_bytes > 0) scratch = cuda::allocate_device(op->info().scratch_bytes);
    bindings.scratch = scratch.view();
    op->bind(bindings);
  }

  // In the value type, in the order of the parameter.
  static Buffer copy_of(Gpu& gpu, const TensorSpec& spec, const Values& values) {
    Buffer memory;
    if (gpu.context.type() == DataType::f32) return memory;
    const auto* layout = dynamic_cast<const cuda::ChannelsLast*>(spec.layout.get());
    if (layout == nullptr) return memory;
    Values packed(layout->count());
    layout->pack(values, packed);
    const auto bytes = to_type(packed, gpu.context.type());
    upload(gpu.context, bytes.data(), bytes.size(), memory);
    return memory;
  }

  std::unique_ptr<Op> op;
  Bindings bindings{};
  std::vector<Values> input_values, before, parameter_values;
  Values gradient_values;
  std::vector<GpuTensor> inputs, input_gradients, parameters, parameter_gradients, output, output_gradient;
  std::vector<Buffer> copies;
  Buffer indices, scratch;
};

inline double largest(const Values& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::abs(double{value}));
  return most;
}

// NaN counts as infinitely far.
inline double distance(const Values& ours, const Values& expected) {
  REQUIRE(ours.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double off = std::abs(double{ours[i]} - expected[i]);
    most = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(most, off);
  }
  return most;
}

inline void check_close(const GpuTensor& tensor, const Values& ours, const Values& expected) {
  const double allowed = test::tolerance(tensor.gpu->context.precision) * std::max(1.0, largest(expected));
  CHECK(distance(ours, expected) <= allowed);
  CHECK(tensor.clean());
}

inline void check_against_cpu(Gpu& gpu, const Operation& operation, const std::vector<Shape>& shapes, Wanted wanted) {
  CAPTURE(to_string(gpu.context.precision), to_string(shapes[0]), static_cast<int>(wanted));
  Trial trial(gpu, operation, shapes, wanted);
  Reference reference(operation, shapes, trial.input_values, trial.parameter_values);
  trial.op->forward();
  const Values output = trial.output[0].read();
  {
    INFO("output");
    check_close(trial.output[0], output, reference.forward());
  }
  constexpr float kWeight = 0.125f;
  reference.backward(output, trial.gradient_values, kWeight);
  trial.op->backward(kWeight);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    INFO("gradient of input " << i);
    Values expected = trial.before[i], ours = trial.input_gradients[i].read();
    const Values gradient = reference.input_gradient(i);
    if (wanted == Wanted::none) CHECK(ours == expected);
    if (wanted == Wanted::none) continue;
    for (std::size_t k = 0; k < expected.size(); ++k)
      expected[k] = gpu.scale() * gradient[k] + (wanted == Wanted::added_to ? expected[k] : 0);
    check_close(trial.input_gradients[i], ours, expected);
  }
  for (std::size_t i = 0; i < trial.parameters.size(); ++i) {
    INFO("gradient of parameter " << i);
    check_close(trial.parameter_gradients[i], trial.parameter_gradients[i].read(), reference.parameter_gradient(i));
  }

  // A repetition is bit-identical.
  Trial second(gpu, operation, shapes, wanted);
  second.op->forward();
  second.op->backward(kWeight);
  CHECK(trial.output[0].bytes() == second.output[0].bytes());
  for (std::size_t i = 0; i < shapes.size(); ++i)
    CHECK(trial.input_gradients[i].bytes() == second.input_gradients[i].bytes());
  for (std::size_t i = 0; i < trial.parameters.size(); ++i)
    CHECK(trial.parameter_gradients[i].bytes() == second.parameter_gradients[i].bytes());
}

inline Wanted any_wanted() {
  return GENERATE(Wanted::written, Wanted::added_to, Wanted::none);
}

}  // namespace annulus::test
