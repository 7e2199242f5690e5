#include "models/network/network.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/lane_span.h"
#include "models/rewrites/fusion.h"

namespace annulus {
DeviceView ActivationArena::of(std::size_t bytes) {
  if (buffers_.empty() || buffers_.back().view().bytes < bytes) buffers_.push_back(device_.allocate(bytes));
  return buffers_.back().view();
}

std::size_t ActivationArena::bytes() const {
  std::size_t sum = 0;
  for (const Buffer& buffer : buffers_) sum += buffer.view().bytes;
  return sum;
}

Network::Network(Device& device, const Graph& graph, Mode mode, std::size_t batch,
                 const std::vector<std::vector<TensorSpec>>& layouts, const Planned& planned,
                 const std::optional<Range>& stage)
    : device_(device),
      graph_(graph),
      nodes_(stage.value_or(Range{0, graph.nodes().size()})),
      mode_(mode),
      batch_(batch),
      wants_keys_(mode == Mode::training && std::ranges::any_of(graph.nodes(), Graph::reads_sample_keys)),
      unmixed_(graph.labels() == LabelForm::mixed ? batch : 0),
      steps_(plan_steps(layouts, planned)),
      activation_plan_(graph, nodes_, ops(), specs_, mode),
      unread_gradients_(device) {}

// If it may choose only some layouts (null ones), it is planned without any first.
std::unique_ptr<Op> Network::plan_node(std::size_t node, bool runs_backward, std::vector<TensorSpec> layouts) const {
  const Node& n = graph_.nodes()[node];
  std::vector<TensorSpec> inputs;
  for (const Value input : n.inputs) inputs.push_back(specs_[input]);
  // What only backward needs is not planned for layers below all trained ones. Dropout drops in training anyway.
  const bool as_in_inference = !runs_backward && !Graph::reads_sample_keys(n);
  const auto plan = [&](const std::vector<TensorSpec>& fixed) {
    return device_.plan(n.operation, inputs, as_in_inference ? Mode::inference : mode_, fixed);
  };
  try {
    const auto chooses = [](const TensorSpec& spec) { return spec.layout == nullptr; };
    if (std::ranges::none_of(layouts, chooses)) return plan(layouts);
    auto op = plan({});
    bool fits = true;
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      if (chooses(layouts[i])) layouts[i] = op->parameters()[i];
      fits = fits && layouts[i].layout->name() == op->parameters()[i].layout->name();
    }
    return fits ? std::move(op) : plan(layouts);
  } catch (const Error& error) {
    fail("layer {}: {}", n.name, error.what());
  }
}

std::vector<Network::Step> Network::plan_steps(const std::vector<std::vector<TensorSpec>>& layouts,
                                               const Planned& planned) {
  std::vector<Step> steps;
  SharedLayouts shared(graph_);
  while (!plan_all(steps, layouts, shared, planned)) continue;
  fuse(steps);
  // An output may have got the layout that its reader prefers.
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) specs_[Graph::output(i)] = steps[i].op->output();
  return steps;
}

// Plans the nodes, and sets specs_ and layouts_. The layout of a stage's input is found by planning the nodes before
// it, too.
bool Network::plan_all(std::vector<Step>& steps, const std::vector<std::vector<TensorSpec>>& layouts,
                       SharedLayouts& shared, const Planned& planned) {
  const auto shapes = graph_.shapes(batch_);
  const DataType label_type = graph_.labels() == LabelForm::targets ? DataType::f32 : DataType::i32;
  const DataType input_type = graph_.reads_tokens() ? DataType::i32 : DataType::u8;
  specs_ = {device_.plain(shapes[Graph::kImages], input_type), device_.plain(shapes[Graph::kLabels], label_type),
            device_.plain(shapes[Graph::kSampleKeys], DataType::i32)};
  layouts_.clear();
  const auto wanted = graph_.required_gradients();
  steps = std::vector<Step>(graph_.nodes().size());
  for (std::size_t i = 0; i < nodes_.end; ++i) {
    const bool runs_backward = mode_ == Mode::training && wanted[Graph::output(i)];
    auto op = plan_node(i, runs_backward, layouts.empty() ? shared.given(graph_.nodes()[i]) : layouts[i]);
    planned();
    specs_.push_back(op->output());
    layouts_.push_back(op->parameters());
    if (!shared.keep(graph_.nodes()[i], op->parameters())) return false;
    if (i < nodes_.begin) continue;
    steps[i].op = std::move(op);
    steps[i].runs_backward = runs_backward;
  }
  return true;
}

// Lets the device fuse neighbours' passes. A backward pass can only be fused if the input's gradient has the memory of
// the output's gradient, to which the next node writes.
void Network::fuse(std::vector<Step>& steps) const {
  const auto pairs = find_pairs(graph_), only_readers = find_only_readers(graph_);
  const auto shared_inputs = find_shared_inputs(graph_);
  const auto& nodes = graph_.nodes();
  std::vector<bool> taken(nodes.size());  // whether a reader of the node's output does a part of the node's passes
  // Returns the other operation, if `found` and both run backward or neither. (An image input has no backward.)
  const auto neighbour = [&](std::size_t i, bool found, std::size_t other) {
    const bool fits =
        steps[i].runs_backward == steps[other].runs_backward || std::holds_alternative<ImageInput>(nodes[i].operation);
    return found && fits ? steps[other].op.get() : nullptr;
  };
  const auto follows = [&](std::size_t i) {
    return i > nodes_.begin && nodes[i].inputs == std::vector{Graph::output(i - 1)} && !nodes[i].recomputed &&
           !nodes[i - 1].recomputed && !steps[i - 1].forward_is_fused;
  };
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) {
    auto* fusion = dynamic_cast<NeighbourFusion*>(steps[i].op.get());
    if (fusion == nullptr) continue;
    const std::size_t previous = shared_inputs[i].value_or(i - 1);
    const bool shares = shared_inputs[i] && !taken[previous];
    Op* const after = i + 1 == nodes_.end ? nullptr : neighbour(i, only_readers[i], i + 1);
    const bool pairs_before = i >= nodes_.begin + 2 && pairs[i - 2] && pairs[i - 1] && steps[i - 2].runs_backward &&
                              steps[i - 1].op->info().input(0).gradient_may_overwrite;
    fusion->fuse_neighbours({.previous = neighbour(i, shares || (i > nodes_.begin && pairs[i - 1]), previous),
                             .shares_input = shares,
                             .next = after,
                             .next_forward = after == nullptr || !pairs[i] ? nullptr : &nodes[i + 1].operation,
                             .previous_backward = pairs_before ? &nodes[i - 1].operation : nullptr,
                             .previous_forward = follows(i) ? &nodes[i - 1].operation : nullptr});
    const FusedPasses& passes = steps[i].op->info().fused;
    if (shares) taken[previous] = passes.adds_elsewhere();
    if (passes.next_forward) steps[i + 1].forward_is_fused = true;
    if (passes.previous_forward) steps[i - 1].forward_is_fused = true;
    if (passes.previous == FusedPasses::Previous::whole_backward) steps[i - 1].backward_is_fused = true;
  }
}

std::vector<const Op*> Network::ops() const {
  std::vector<const Op*> all;
  for (const Step& step : steps_) all.push_back(step.op.get());
  return all;
}

DeviceView Network::value(Value value) const {
  if (!Graph::has_node(value)) return outside_[value].view();
  return value < Graph::output(nodes_.begin) ? entering_.view() : view(activation_plan_.value(value));
}

void Network::bind(const Parameters& parameters, ActivationArena& memory) {
  for (Value value = 0; !Graph::has_node(value); ++value)
    outside_.push_back(device_.allocate(specs_[value].layout->bytes()));
  if (nodes_.begin > 0) entering_ = device_.allocate(specs_[Graph::output(nodes_.begin - 1)].layout->bytes());
  activations_ = memory.of(activation_plan_.bytes());
  if (mode_ == Mode::training) shared_gradients_ = SharedGradients(graph_, order(), parameters);
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) bind_step(i, parameters);
  stop_at({});
}

void Network::bind_step(std::size_t node, const Parameters& parameters) {
  Step& step = steps_[node];
  const Value output = Graph::output(node);
  Bindings bindings;
  for (const Value input : graph_.nodes()[node].inputs) bindings.inputs.push_back(value(input));
  bindings.output = value(output);
  bindings.scratch = view(activation_plan_.scratch());
  bindings.output_gradient = view(activation_plan_.gradient(output));
  for (std::size_t k = 0; k < bindings.inputs.size(); ++k) {
    const auto& [piece, accumulate, added_to, others] = activation_plan_.input_gradients(node)[k];
    bindings.input_gradients.push_back(view(piece));
    bindings.accumulate.push_back(accumulate);
    if (added_to) step.additions.push_back({view(piece), view(added_to), specs_[graph_.nodes()[node].inputs[k]].type});
  }
  const auto own = parameters.of_node(node);
  for (const Parameter* parameter : own) {
    bindings.parameters.push_back(parameters.weight(*parameter));
    bindings.copies.push_back(parameters.copy(*parameter));
  }
  if (step.runs_backward) bindings.parameter_gradients = parameter_gradients(node, parameters);
  const Range gradients = parameters.gradients_of_node(node);
  step.parameters = {gradients.begin / sizeof(float), gradients.end / sizeof(float)};
  step.parameters_from = std::numeric_limits<std::size_t>::max();
  for (const Parameter* p : own)
    if (parameters.has_gradient(node, *p) || p->second_slot)
      step.parameters_from = std::min(step.parameters_from, p->offset / sizeof(float));
  if (auto* fusion = dynamic_cast<NeighbourFusion*>(step.op.get())) fusion->bind_neighbours(neighbour_bindings(node));
  step.op->bind(bindings);
  if (own.empty() || shared_gradients_.any(node)) return;
  std::vector<std::optional<std::size_t>> begins;  // of the gradients that this node completes
  for (const Parameter* p : own)
    begins.push_back(parameters.has_gradient(node, *p) ? std::optional(p->offset / sizeof(float)) : std::nullopt);
  step.op->report_gradients([this, begins = std::move(begins)](std::size_t parameter, std::size_t values) {
    if (begins[parameter]) (*ready_)(*begins[parameter] + values, {});
  });
}

NeighbourBindings Network::neighbour_bindings(std::size_t node) const {
  const FusedPasses& passes = steps_[node].op->info().fused;
  NeighbourBindings bindings{.second_output_gradient = view(activation_plan_.second_gradient(Graph::output(node)))};
  if (passes.next_forward) bindings.next_output = value(Graph::output(node + 1));
  if (passes.previous_forward) bindings.previous_output = value(graph_.nodes()[node].inputs[0]);
  if (passes.reads_previous_inputs() || passes.previous_forward)
    for (const Value input : graph_.node(graph_.nodes()[node].inputs[0]).inputs)
      bindings.previous_inputs.push_back(value(input));
  if (passes.adds_elsewhere()) bindings.gradient_of_others = view(activation_plan_.input_gradients(node)[0].others);
  return bindings;
}

std::vector<DeviceView> Network::parameter_gradients(std::size_t node, const Parameters& parameters) {
  const auto own = parameters.of_node(node);
  const bool skipped = steps_[node].op->info().skips_parameter_gradients &&
                       std::ranges::all_of(own, [](const Parameter* p) { return p->role == Role::frozen; });
  std::vector<DeviceView> gradients;
  for (const Parameter* p : own) {
    if (p->second_slot) {
      gradients.push_back(shared_gradients_.destination(node, *p));
    } else if (parameters.has_gradient(node, *p)) {
      gradients.push_back(parameters.gradient(*p));
    } else if (p->role != Role::frozen) {  // a token embedding's, shared with the head
      const Value output = Graph::output(node);
      const TensorSpec& rows = specs_[output];
      const std::size_t width = rows.layout->bytes() / size_of(rows.type) / (elements(rows.shape) / rows.shape.back());
      embedding_gradient_ = {parameters.gradient(*p), view(activation_plan_.gradient(output)), rows.type, width};
      gradients.emplace_back();
    } else {
      gradients.push_back(skipped ? DeviceView{} : unread_gradients_.of(p->bytes).slice(0, p->bytes));
    }
  }
  return gradients;
}

void Network::load(std::span<const std::uint8_t> images, const Labels& labels, std::span<const std::int32_t> keys) {
  load([&](DeviceView to) { device_.upload(std::as_bytes(images), to); }, labels, keys);
}

void Network::load(const WriteImages& write, const Labels& labels, std::span<const std::int32_t> keys) {
  write(value(Graph::kImages));
  load_labels(labels);
  if (!wants_keys_) return;
  if (keys.size() != batch_) fail("dropout needs a key for each of {} samples, but there are {}", batch_, keys.size());
  device_.upload(std::as_bytes(keys), value(Graph::kSampleKeys));
}

void Network::load_labels(const Labels& labels) {
  const auto upload = [&](auto values) { device_.upload(std::as_bytes(values), value(Graph::kLabels)); };
  if (graph_.labels() == LabelForm::one_class) return upload(labels.classes);
  if (graph_.labels() == LabelForm::targets) return upload(labels.targets);
  if (!labels.mixed.empty()) return upload(labels.mixed);
  std::ranges::transform(labels.classes, unmixed_.begin(), [](std::int32_t label) {
    return MixedLabel{label, label, MixedLabel::kWhole};
  });
  upload(std::span<const MixedLabel>(unmixed_));
}

void Network::sum_over_ranks(const SumOverRanks& sum) {
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) steps_[i].op->sum_over_ranks(sum);
}

void Network::stop_at(const Stops& stops) {
  plan_forward(stops.forward);
  plan_backward(stops);
  joined_ = {};
}

// The arena is in backward's order, so forward needs the arena's end first.
void Network::plan_forward(std::span<const std::size_t> stops) {
  forward_.clear();
  std::size_t from = std::numeric_limits<std::size_t>::max();
  for (std::size_t k = 0; k < order().size(); ++k) {
    const std::size_t i = order()[k], before = from;
    from = std::min(from, steps_[i].parameters_from);
    const auto crossed = [&](std::size_t stop) { return from < stop && stop <= before; };
    if (forward_.empty() || !recordable(i) || !forward_.back().work.recordable || std::ranges::any_of(stops, crossed))
      forward_.push_back({{k, k + 1}, from, {recordable(i)}});
    forward_.back().steps.end = k + 1;
    forward_.back().place = from;
  }
}

// A layer's gradients are final only when all before them in the arena are: a layer that runs after the other readers
// of the same input is before them there.
void Network::plan_backward(const Stops& stops) {
  backward_.clear();
  std::vector<std::size_t> pending;  // for each layer, where the gradients begin that are computed after this layer's
  for (std::size_t from = std::numeric_limits<std::size_t>::max(); const std::size_t i : order()) {
    pending.push_back(from);
    if (steps_[i].runs_backward) from = std::min(from, steps_[i].parameters_from);
  }
  std::size_t computed = 0, final = 0;
  bool stopped = true;
  for (std::size_t k = order().size(); k-- > 0;) {
    const std::size_t i = order()[k], before = final;
    if (!steps_[i].runs_backward) continue;
    if (steps_[i].parameters.size() > 0) computed = std::max(computed, steps_[i].parameters.end);
    final = std::min(computed, pending[k]);
    if (stopped || !recordable(i)) backward_.push_back({{k, k + 1}, final, {recordable(i)}});
    backward_.back().steps.begin = k;
    backward_.back().place = final;
    const auto reached = [&](std::size_t stop) { return before < stop && stop <= final; };
    stopped = !recordable(i) || std::ranges::any_of(stops.backward, reached);
    if (std::ranges::any_of(stops.marks, reached)) backward_.back().marked.push_back({k, final});
  }
  for (CapturedSegment& segment : backward_)  // the end needs no mark
    std::erase_if(segment.marked, [&](const MarkedPlace& marked) { return marked.place == segment.place; });
}

// The first run is not recorded, because the vendor's library may plan and allocate memory in it. Nor are runs with
// spans for every layer, whose marks are part of the work.
template <class Work>
void Network::run(Repeated& repeated, const Work& work) {
  marks_.clear();
  if (!repeated.recordable || traced() || !repeated.done_before) {
    work();
    repeated.done_before = true;
    return;
  }
  if (repeated.recording == nullptr) repeated.recording = device_.record(work);
  const auto marks = repeated.recording->replay();
  marks_.assign(marks.begin(), marks.end());
}

// Whether nothing can come between the passes.
bool Network::can_join() const {
  return !traced() && !links_.send_output && !links_.receive_output_gradient && !backward_.empty() &&
         forward_.back().work.recordable && backward_.front().work.recordable;
}

void Network::use_weight(float sample_weight) {
  if (sample_weight != recorded_weight_) {
    for (CapturedSegment& segment : backward_) segment.work.recording = nullptr;
    joined_.recording = nullptr;
  }
  recorded_weight_ = sample_weight;
}

void Network::forward(const Needed& needed, const std::optional<float>& then_backward) {
  if (links_.receive_input) links_.receive_input(entering_.view());
  {
    const LaneSpan all(device_, lane_, "forward");
    begun_ = then_backward && can_join();
    if (begun_) use_weight(*then_backward);
    for (CapturedSegment& segment : forward_) {
      needed(segment.place);
      if (begun_ && &segment == &forward_.back())
        run(joined_, [&] {
          forward_segment(segment);
          backward_segment(backward_.front(), *then_backward);
        });
      else
        run(segment.work, [&] { forward_segment(segment); });
    }
  }
  if (links_.send_output) links_.send_output(value(Graph::output(nodes_.end - 1)));
}

void Network::forward_segment(const CapturedSegment& segment) {
  for (std::size_t k = segment.steps.begin; k < segment.steps.end; ++k) forward_layer(order()[k]);
}

void Network::backward(float sample_weight, const Ready& ready) {
  const auto gradient = [this](std::size_t node) { return view(activation_plan_.gradient(Graph::output(node))); };
  if (links_.receive_output_gradient) links_.receive_output_gradient(gradient(nodes_.end - 1));
  backward_segments(sample_weight, ready);
  if (links_.send_input_gradient) links_.send_input_gradient(gradient(nodes_.begin - 1));
}

void Network::backward_segments(float sample_weight, const Ready& ready) {
  const LaneSpan all(device_, lane_, "backward");
  use_weight(sample_weight);
  ready_ = &ready;
  std::size_t final = 0;
  for (CapturedSegment& segment : backward_) {
    if (!std::exchange(begun_, false)) run(segment.work, [&] { backward_segment(segment, sample_weight); });
    for (std::size_t i = 0; i < segment.marked.size(); ++i) ready(segment.marked[i].place, marks_[i]);
    if (segment.place > final) ready(final = segment.place, {});
  }
}

void Network::backward_segment(const CapturedSegment& segment, float sample_weight) {
  auto marked = segment.marked.begin();
  for (std::size_t k = segment.steps.end; k-- > segment.steps.begin;) {
    backward_layer(order()[k], sample_weight);
    if (marked != segment.marked.end() && marked->step == k) {
      marks_.push_back(device_.mark());
      ++marked;
    }
  }
}

void Network::forward_layer(std::size_t step) {
  if (steps_[step].forward_is_fused) return;
  const LaneSpan layer(device_, lane_, graph_.nodes()[step].name);
  steps_[step].op->forward();
}

void Network::backward_layer(std::size_t step, float sample_weight) {
  if (!steps_[step].runs_backward) return;
  for (const std::size_t again : activation_plan_.recomputed_before(step)) forward_layer(again);
  if (steps_[step].backward_is_fused) return;
  const LaneSpan layer(device_, lane_, graph_.nodes()[step].name);
  steps_[step].op->backward(sample_weight);
  for (const auto& [partial, gradient, type] : steps_[step].additions) device_.add(partial, gradient, type);
  shared_gradients_.add(device_, step);
}

LossSums Network::loss() const {
  const Value loss = graph_.values() - 1;
  std::array<float, 3> sums{};
  device_.download(value(loss), std::as_writable_bytes(std::span(sums).first(elements(specs_[loss].shape))));
  if (graph_.predicts_tokens()) return {.loss = sums[0], .measure = sums[1], .targets = sums[2]};
  return {.loss = sums[0], .measure = sums[1], .among_largest = sums[2]};
}

}  // namespace annulus
