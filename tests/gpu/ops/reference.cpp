#include "tests/gpu/ops/reference.h"

namespace annulus::test {

Reference::Tensor::Tensor(Device& device, const TensorSpec& of, const Values& values)
    : spec(of), memory(device.allocate(of.layout->bytes())) {
  device.write(values, spec, memory.view());
}

Values Reference::Tensor::read(Device& device) const {
  Values values(elements(spec.shape));
  device.read(spec, memory.view(), values);
  return values;
}

Reference::Reference(const Operation& operation, const std::vector<Shape>& shapes,
                     const std::vector<Values>& input_values, const std::vector<Values>& parameter_values) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const TensorSpec spec = device_.plain(shapes[i], DataType::f32);
    inputs_.emplace_back(device_, spec, input_values[i]);
    input_gradients_.emplace_back(device_, spec, Values(elements(shapes[i])));
  }
  const auto* norm = std::get_if<BatchNorm>(&operation);
  if (norm == nullptr) {
    append(operation, shapes, parameter_values);
    return;
  }
  append(BatchNorm{.epsilon = norm->epsilon}, {shapes[0]}, parameter_values);
  if (norm->add) append(Add{}, shapes, {});
  if (norm->relu) append(Relu{}, {shapes[0]}, {});
}

// The first input is the output of the step before, if there is one.
void Reference::append(const Operation& operation, const std::vector<Shape>& shapes,
                       const std::vector<Values>& parameter_values) {
  const Tensor& in = steps_.empty() ? inputs_[0] : *steps_.back().output;
  const Tensor& in_gradient = steps_.empty() ? input_gradients_[0] : *steps_.back().gradient;
  std::vector<TensorSpec> specs{in.spec};
  Bindings bindings{};
  bindings.inputs = {in.memory.view()};
  bindings.input_gradients = {in_gradient.memory.view()};
  for (std::size_t i = 1; i < shapes.size(); ++i) {
    specs.push_back(inputs_[i].spec);
    bindings.inputs.push_back(inputs_[i].memory.view());
    bindings.input_gradients.push_back(input_gradients_[i].memory.view());
  }
  Step step;
  step.op = device_.plan(operation, specs, Mode::training, {});
  const TensorSpec& out = step.op->output();
  step.output = std::make_unique<Tensor>(device_, out, Values(elements(out.shape)));
  step.gradient = std::make_unique<Tensor>(device_, out, Values(elements(out.shape)));
  for (std::size_t i = 0; i < step.op->parameters().size(); ++i) {
    const TensorSpec& spec = step.op->parameters()[i];
    parameters_.emplace_back(device_, spec, parameter_values[i]);
    parameter_gradients_.emplace_back(device_, spec, Values(elements(spec.shape)));
    bindings.parameters.push_back(parameters_.back().memory.view());
    bindings.parameter_gradients.push_back(parameter_gradients_.back().memory.view());
  }
  bindings.output = step.output->memory.view();
  bindings.output_gradient = step.gradient->memory.view();
  step.scratch = device_.allocate(step.op->info().scratch_bytes);
  bindings.scratch = step.scratch.view();
  step.op->bind(bindings);
  steps_.push_back(std::move(step));
}

Values Reference::forward() {
  for (const Step& step : steps_) step.op->forward();
  return steps_.back().output->read(device_);
}

void Reference::backward(const Values& output, const Values& output_gradient, float sample_weight) {
  const Step& last = steps_.back();
  device_.write(output, last.output->spec, last.output->memory.view());
  device_.write(output_gradient, last.gradient->spec, last.gradient->memory.view());
  for (std::size_t i = steps_.size(); i-- > 0;) steps_[i].op->backward(sample_weight);
}

Values Reference::input_gradient(std::size_t input) {
  return input_gradients_[input].read(device_);
}

Values Reference::parameter_gradient(std::size_t parameter) {
  return parameter_gradients_[parameter].read(device_);
}

}  // namespace annulus::test
