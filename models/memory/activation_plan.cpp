#include "models/memory/activation_plan.h"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

struct Read {
  Value value;
  bool in_backward;  // and in forward
};

// Returns the values that a node reads: the node's inputs and, if it does the previous node's passes, that node's
// inputs.
std::vector<Read> reads(const Graph& graph, std::size_t node, const Op& op, bool runs_backward) {
  const auto& inputs = graph.nodes()[node].inputs;
  std::vector<Read> all;
  for (std::size_t k = 0; k < inputs.size(); ++k)
    all.push_back({inputs[k], runs_backward && op.info().input(k).backward_reads});
  if (op.info().fused.reads_previous_inputs()) all.push_back({graph.node(inputs[0]).inputs[0], all[0].in_backward});
  if (op.info().fused.previous == FusedPasses::Previous::shared_output)
    all.push_back({graph.node(inputs[0]).inputs[1], false});
  if (op.info().fused.previous_forward)
    for (const Value input : graph.node(inputs[0]).inputs) all.push_back({input, false});
  return all;
}

}  // namespace

ActivationPlan::ActivationPlan(const Graph& graph, const Range& nodes, std::vector<const Op*> ops,
                               std::vector<TensorSpec> specs, Mode mode)
    : graph_(graph),
      nodes_(nodes),
      ops_(std::move(ops)),
      specs_(std::move(specs)),
      training_(mode == Mode::training),
      wanted_(graph.required_gradients()),
      recomputed_before_(ops_.size()),
      forward_(ops_.size()),
      backward_(ops_.size()),
      ranges_(graph.values()),
      ranges_again_(graph.values()),
      first_node_(graph.values(), kNobody),
      values_(graph.values()),
      gradients_(graph.values()),
      second_gradients_(graph.values()),
      input_gradients_(ops_.size()) {
  for (std::size_t i = 0; i < ops_.size(); ++i) input_gradients_[i].resize(graph.nodes()[i].inputs.size());
  find_order();
  if (training_) find_recomputed();
  set_moments();
  find_reads();
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) place_output(i);
  if (training_) {
    expect_readers();
    place_last_gradient();
    for (const std::size_t i : order_ | std::views::reverse)
      for (std::size_t k = 0; k < input_gradients_[i].size(); ++k) input_gradients_[i][k] = place_input_gradient(i, k);
  }
  std::size_t scratch = 0;
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) scratch = std::max(scratch, ops_[i]->info().scratch_bytes);
  scratch_ = add({scratch, {0, end_}});
  plan_ = plan_memory(pieces_);
}

DeviceView ActivationPlan::view(const Piece& piece, DeviceView arena) const {
  if (!piece || pieces_[*piece].bytes == 0) return {};
  return arena.slice(plan_.offsets[*piece], pieces_[*piece].bytes);
}

std::size_t ActivationPlan::bytes_without_reuse() const {
  std::size_t sum = 0;
  for (const Lifetime& piece : pieces_) sum += piece.bytes;
  return sum;
}

std::size_t ActivationPlan::kept_bytes() const {
  std::size_t sum = 0;
  for (const Lifetime& piece : pieces_)
    if (piece.first.begin < nodes_.end && piece.first.end >= nodes_.end && &piece != &pieces_[*scratch_])
      sum += piece.bytes;
  return sum;
}

ActivationPlan::Piece ActivationPlan::add(const Lifetime& piece) {
  pieces_.push_back(piece);
  return pieces_.size() - 1;
}

// Whether a node's backward runs.
bool ActivationPlan::runs_backward(std::size_t node) const {
  return training_ && wanted_[Graph::output(node)];
}

void ActivationPlan::expect_readers() const {
  for (std::size_t i = nodes_.begin; i + 1 < nodes_.end; ++i)
    if (wanted_[Graph::output(i)] && first_node_[Graph::output(i)] == kNobody)
      fail("layer {}: nothing reads its output, so it cannot be trained", graph_.nodes()[i].name);
}

void ActivationPlan::find_order() {
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) {
    auto place = order_.end();
    if (ops_[i]->info().fused.adds_elsewhere())
      place = std::next(std::ranges::find(order_, node_of(graph_.nodes()[i].inputs[0])));
    order_.insert(place, i);
  }
  for (std::size_t k = 0; k < order_.size(); ++k) forward_[order_[k]] = nodes_.begin + k;
}

// A node is recomputed before the first backward pass that needs the node's output: to read it, or to recompute a node
// that reads it.
void ActivationPlan::find_recomputed() {
  std::vector<std::optional<std::size_t>> needed_by(graph_.values());  // forward() of the node whose backward that is
  for (const std::size_t i : order_ | std::views::reverse) {
    const Node& node = graph_.nodes()[i];
    std::optional<std::size_t>& needs_output = needed_by[Graph::output(i)];
    if (runs_backward(i) && ops_[i]->info().backward_reads_output)
      needs_output = std::max(needs_output, std::optional(forward(i)));
    const bool again = node.recomputed && needs_output;
    if (again) {
      auto& before = recomputed_before_[order_[*needs_output - nodes_.begin]];
      before.insert(before.begin(), i);
    }
    for (const auto& [value, in_backward] : reads(graph_, i, *ops_[i], runs_backward(i))) {
      std::optional<std::size_t>& needs_input = needed_by[value];
      if (in_backward) needs_input = std::max(needs_input, std::optional(forward(i)));
      if (again) needs_input = std::max(needs_input, needs_output);
    }
  }
}

void ActivationPlan::set_moments() {
  end_ = nodes_.end;
  for (const std::size_t i : order_ | std::views::reverse) {
    for (const std::size_t again : recomputed_before_[i]) {
      std::optional<LiveRange>& range = ranges_again_[Graph::output(again)];
      range = {range ? range->begin : end_, end_};
      if (ops_[again]->info().fused.next_forward) ranges_again_[Graph::output(again + 1)] = {end_, end_};
      ++end_;
    }
    backward_[i] = end_++;
  }
}

void ActivationPlan::find_reads() {
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i) ranges_[Graph::output(i)] = {forward(i), forward(i)};
  for (std::size_t i = nodes_.begin; i < nodes_.end; ++i)
    if (ops_[i]->info().fused.next_forward) ranges_[Graph::output(i + 1)].begin = forward(i);
  const auto read_later = [this](Value value, std::size_t moment) {
    LiveRange& range = ranges_again_[value] ? *ranges_again_[value] : ranges_[value];
    range.end = std::max(range.end, moment);
  };
  for (const std::size_t i : order_ | std::views::reverse) {
    const std::optional<LiveRange>& again = ranges_again_[Graph::output(i)];
    for (const auto& [value, in_backward] : reads(graph_, i, *ops_[i], runs_backward(i))) {
      ranges_[value].end = std::max(ranges_[value].end, forward(i));
      if (again) read_later(value, again->begin);
      if (in_backward) read_later(value, backward(i));
      first_node_[value] = i;
    }
    if (runs_backward(i) && ops_[i]->info().backward_reads_output) read_later(Graph::output(i), backward(i));
  }
  if (nodes_.end == ops_.size()) ranges_.back().end = end_;  // the loss, which the caller reads
}

// Returns whether a node may write the output over this input: the operation supports that, and nothing reads the input
// afterwards, neither in forward nor in a recomputation.
bool ActivationPlan::may_overwrite(std::size_t node, std::size_t input) const {
  const Value value = graph_.nodes()[node].inputs[input];
  if (!ops_[node]->info().input(input).output_may_overwrite || !values_[value] ||
      bytes(value) != bytes(Graph::output(node)) || ranges_[value].end != forward(node))
    return false;
  const std::optional<LiveRange>& again = ranges_again_[value];
  const std::optional<LiveRange>& output = ranges_again_[Graph::output(node)];
  return again.has_value() == output.has_value() && (!again || again->end == output->begin);
}

void ActivationPlan::place_output(std::size_t node) {
  const Value output = Graph::output(node);
  const auto& inputs = graph_.nodes()[node].inputs;
  if (node + 1 < nodes_.end && ops_[node + 1]->info().fused.replaces_output()) {
    values_[output] = add({0, ranges_[output], ranges_again_[output]});
    return;
  }
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!may_overwrite(node, k)) continue;
    values_[output] = values_[inputs[k]];
    Lifetime& piece = pieces_[*values_[output]];
    piece.first.end = std::max(piece.first.end, ranges_[output].end);
    if (piece.again) piece.again->end = std::max(piece.again->end, ranges_again_[output]->end);
    return;
  }
  values_[output] = add({bytes(output), ranges_[output], ranges_again_[output]});
}

// The gradient of a stage's output comes from the next stage, before backward.
void ActivationPlan::place_last_gradient() {
  const std::size_t last = nodes_.end - 1;
  if (nodes_.end < ops_.size() && runs_backward(last))
    gradients_[Graph::output(last)] = add({bytes(Graph::output(last)), {nodes_.end, backward(last)}});
}

ActivationPlan::InputGradient ActivationPlan::place_input_gradient(std::size_t node, std::size_t input) {
  const auto& inputs = graph_.nodes()[node].inputs;
  const Value value = inputs[input], output = Graph::output(node);
  const Op& op = *ops_[node];
  if (!wanted_[value]) return {};
  Piece& gradient = gradients_[value];
  if (gradient && op.info().fused.adds_elsewhere()) {
    const Piece others = std::exchange(gradient, add({bytes(value), {backward(node), backward_of(value)}}));
    pieces_[*others].first.end = backward(node);
    return {.piece = gradient, .others = others};
  }
  if (gradient) {  // another node has written it
    if (op.info().input(input).adds_to_gradient) return {gradient, true};
    const bool last = first_node_[value] == node && std::ranges::count(inputs, value) == 1;
    if (!last || !is_computed(value) || !ops_[node_of(value)]->info().fused.second_gradient)
      return {add({bytes(value), {backward(node), backward(node)}}), false, gradient};
    second_gradients_[value] = add({bytes(value), {backward(node), backward_of(value)}});
    return {second_gradients_[value]};
  }
  const auto taken = [&](const InputGradient& other) { return other.piece == gradients_[output]; };
  if (may_share_gradient(node, input)) {
    gradient = gradients_[output];
    LiveRange& range = pieces_[*gradient].first;
    range.end = std::max(range.end, backward_of(value));
  } else if (op.info().fused.previous == FusedPasses::Previous::output_only ||
             (op.info().input(input).gradient_may_overwrite && gradients_[output] && bytes(value) == bytes(output) &&
              std::ranges::none_of(input_gradients_[node], taken))) {
    gradient = gradients_[output];
    pieces_[*gradient].first.end = backward_of(value);
  } else {
    gradient = add({bytes(value), {backward(node), backward_of(value)}});
  }
  return {gradient};
}

}  // namespace annulus
