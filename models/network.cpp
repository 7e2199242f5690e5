#include "models/network.h"

#include <algorithm>
#include <array>
#include <limits>

#include "kernels/error.h"
#include "kernels/lane_span.h"

namespace annulus {

Network::Network(Device& device, const Graph& graph, Mode mode, std::size_t batch,
                 const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned)
    : device_(device), graph_(graph), mode_(mode), batch_(batch) {
  const auto shapes = graph.shapes(batch);
  specs_ = {device.plain(shapes[Graph::kImages], DataType::u8), device.plain(shapes[Graph::kLabels], DataType::i32)};
  for (std::size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    std::vector<TensorSpec> inputs;
    for (const Value input : node.inputs) inputs.push_back(specs_[input]);
    Step step;
    try {
      step.op = device.plan(node.operation, inputs, mode, layouts.empty() ? std::vector<TensorSpec>{} : layouts[i]);
    } catch (const Error& error) {
      fail("layer {}: {}", node.name, error.what());
    }
    planned();
    specs_.push_back(step.op->output());
    steps_.push_back(std::move(step));
  }
  for (const TensorSpec& spec : specs_) values_.push_back(device.allocate(spec.layout->bytes()));
}

std::vector<std::vector<TensorSpec>> Network::parameter_layouts() const {
  std::vector<std::vector<TensorSpec>> layouts;
  for (const Step& step : steps_) layouts.push_back(step.op->parameters());
  return layouts;
}

// A value's gradient is wanted where something below it has parameters.
std::vector<bool> Network::wanted_gradients() const {
  std::vector<bool> wanted(graph_.values(), false);
  if (mode_ == Mode::inference) return wanted;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& inputs = graph_.nodes()[i].inputs;
    wanted[Graph::output(i)] =
        !steps_[i].op->parameters().empty() || std::ranges::any_of(inputs, [&](Value input) { return wanted[input]; });
  }
  return wanted;
}

void Network::bind(const Parameters& parameters) {
  const auto wanted = wanted_gradients();
  const bool training = mode_ == Mode::training;
  gradients_.resize(graph_.values());
  std::size_t largest = 0;
  for (Value value = 0; value + 1 < graph_.values(); ++value)
    if (wanted[value]) {
      gradients_[value] = device_.allocate(specs_[value].layout->bytes());
      largest = std::max(largest, specs_[value].layout->bytes());
    }

  // In backward's order, so that the first reader of a value that is met here is the first to write its gradient.
  std::vector<bool> written(graph_.values(), false);
  for (std::size_t i = steps_.size(); i-- > 0;) {
    Step& step = steps_[i];
    const Value output = Graph::output(i);
    Bindings bindings;
    bindings.output = value(output);
    bindings.output_gradient = gradients_[output].view();
    const auto& inputs = graph_.nodes()[i].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      bindings.inputs.push_back(value(inputs[k]));
      DeviceView gradient = gradients_[inputs[k]].view();
      const bool second = wanted[inputs[k]] && written[inputs[k]];
      bindings.accumulate.push_back(second && step.op->adds_to_gradient(k));
      if (second && !bindings.accumulate.back()) {
        if (!partial_[k].view()) partial_[k] = device_.allocate(largest);
        const DeviceView partial = partial_[k].view().slice(0, gradient.bytes);
        step.additions.push_back({partial, gradient, specs_[inputs[k]].type});
        gradient = partial;
      }
      written[inputs[k]] = true;
      bindings.input_gradients.push_back(gradient);
    }
    for (const Parameter* parameter : parameters.of_node(i)) {
      bindings.parameters.push_back(parameters.weight(*parameter));
      bindings.copies.push_back(parameters.copy(*parameter));
      if (training) bindings.parameter_gradients.push_back(parameters.gradient(*parameter));
    }
    if (!bindings.parameters.empty())
      step.parameters = {parameters.of_node(i).front()->offset / sizeof(float),
                         parameters.end_of_node(i) / sizeof(float)};
    step.op->bind(bindings);
  }
  stop_at({});
}

void Network::load(std::span<const std::uint8_t> images, std::span<const std::int32_t> labels) {
  device_.upload(std::as_bytes(images), value(Graph::kImages));
  device_.upload(std::as_bytes(labels), value(Graph::kLabels));
}

void Network::stop_at(const Stops& stops) {
  plan_forward(stops.forward);
  plan_backward(stops.backward);
}

// The arena lies in backward's order, so forward needs it from its end.
void Network::plan_forward(std::span<const std::size_t> stops) {
  forward_.clear();
  std::size_t from = std::numeric_limits<std::size_t>::max();
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::size_t before = from;
    if (steps_[i].parameters.size() > 0) from = std::min(from, steps_[i].parameters.begin);
    const auto crossed = [&](std::size_t stop) { return from < stop && stop <= before; };
    if (forward_.empty() || !device_.records() || std::ranges::any_of(stops, crossed))
      forward_.push_back({{i, i + 1}, from, nullptr});
    forward_.back().steps.end = i + 1;
    forward_.back().place = from;
  }
}

void Network::plan_backward(std::span<const std::size_t> stops) {
  backward_.clear();
  std::size_t final = 0;
  bool stopped = true;
  for (std::size_t i = steps_.size(); i-- > 0;) {
    const std::size_t before = final;
    if (steps_[i].parameters.size() > 0) final = steps_[i].parameters.end;
    if (stopped) backward_.push_back({{i, i + 1}, final, nullptr});
    backward_.back().steps.begin = i;
    backward_.back().place = final;
    const auto reached = [&](std::size_t stop) { return before < stop && stop <= final; };
    stopped = !device_.records() || std::ranges::any_of(stops, reached);
  }
}

// The first time as it is, which may plan and allocate within the vendor's library. With spans of every layer there is
// no recording: their marks are part of the work.
template <class Work>
void Network::run(Stretch& stretch, const Work& work) {
  const bool traced = lane_ != nullptr && lane_->recording();
  if (!device_.records() || traced || !stretch.done_before) {
    work();
    stretch.done_before = true;
    return;
  }
  if (stretch.recording == nullptr) stretch.recording = device_.record(work);
  stretch.recording->replay();
}

void Network::forward(const Needed& needed) {
  const LaneSpan all(device_, lane_, "forward");
  for (Stretch& stretch : forward_) {
    needed(stretch.place);
    run(stretch, [&] { forward_layers(stretch.steps); });
  }
}

void Network::backward(float sample_weight, const Ready& ready) {
  const LaneSpan all(device_, lane_, "backward");
  if (sample_weight != recorded_weight_)
    for (Stretch& stretch : backward_) stretch.recording = nullptr;
  recorded_weight_ = sample_weight;
  std::size_t final = 0;
  for (Stretch& stretch : backward_) {
    run(stretch, [&] { backward_layers(stretch.steps, sample_weight); });
    if (stretch.place > final) ready(final = stretch.place);
  }
}

void Network::forward_layers(const Range& steps) {
  for (std::size_t i = steps.begin; i < steps.end; ++i) {
    const LaneSpan layer(device_, lane_, graph_.nodes()[i].name);
    steps_[i].op->forward();
  }
}

void Network::backward_layers(const Range& steps, float sample_weight) {
  for (std::size_t i = steps.end; i-- > steps.begin;) {
    const LaneSpan layer(device_, lane_, graph_.nodes()[i].name);
    const Step& step = steps_[i];
    step.op->backward(sample_weight);
    for (const Addition& addition : step.additions) device_.add(addition.partial, addition.gradient, addition.type);
  }
}

LossSums Network::loss() const {
  std::array<float, 2> sums{};
  device_.download(value(graph_.values() - 1), std::as_writable_bytes(std::span(sums)));
  return {sums[0], sums[1]};
}

}  // namespace annulus
