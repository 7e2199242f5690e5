#include "models/activation_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/base/error.h"

namespace annulus {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

}  // namespace

ActivationPlan::ActivationPlan(const Graph& graph, std::vector<const Op*> ops, std::vector<TensorSpec> specs, Mode mode)
    : graph_(graph),
      ops_(std::move(ops)),
      specs_(std::move(specs)),
      training_(mode == Mode::training),
      wanted_(graph.required_gradients()),
      last_read_(graph.values(), 0),
      first_node_(graph.values(), kNobody),
      values_(graph.values()),
      gradients_(graph.values()),
      second_gradients_(graph.values()),
      input_gradients_(ops_.size()) {
  for (std::size_t i = 0; i < ops_.size(); ++i) input_gradients_[i].resize(graph.nodes()[i].inputs.size());
  find_last_reads();
  for (std::size_t i = 0; i < ops_.size(); ++i) place_output(i);
  if (training_) {
    expect_readers();
    for (std::size_t i = ops_.size(); i-- > 0;) place_input_gradients(i);
  }
  std::size_t scratch = 0;
  for (const Op* op : ops_) scratch = std::max(scratch, op->info().scratch_bytes);
  scratch_ = add(scratch, 0, end());
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

ActivationPlan::Piece ActivationPlan::add(std::size_t bytes, std::size_t begin, std::size_t end) {
  pieces_.push_back({bytes, begin, end});
  return pieces_.size() - 1;
}

// Whether a node's backward runs.
bool ActivationPlan::runs_backward(std::size_t node) const {
  return training_ && wanted_[Graph::output(node)];
}

void ActivationPlan::expect_readers() const {
  for (std::size_t i = 0; i + 1 < ops_.size(); ++i)
    if (wanted_[Graph::output(i)] && first_node_[Graph::output(i)] == kNobody)
      fail("layer {}: nothing reads its output, so it cannot be trained", graph_.nodes()[i].name);
}

void ActivationPlan::find_last_reads() {
  for (std::size_t i = ops_.size(); i-- > 0;) {
    const auto& inputs = graph_.nodes()[i].inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      const bool again = runs_backward(i) && ops_[i]->info().input(k).backward_reads;
      last_read_[inputs[k]] = std::max(last_read_[inputs[k]], again ? backward(i) : forward(i));
      first_node_[inputs[k]] = i;
    }
    const Value output = Graph::output(i);
    last_read_[output] = std::max(last_read_[output], forward(i));
    if (runs_backward(i) && ops_[i]->info().backward_reads_output)
      last_read_[output] = std::max(last_read_[output], backward(i));
  }
  last_read_.back() = end();  // the loss, which the caller reads
}

// Overwrites an input that is not read again, if the operation supports that.
void ActivationPlan::place_output(std::size_t node) {
  const Value output = Graph::output(node);
  const auto& inputs = graph_.nodes()[node].inputs;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Value input = inputs[k];
    if (!ops_[node]->info().input(k).output_may_overwrite || !values_[input] || last_read_[input] != forward(node) ||
        bytes(input) != bytes(output))
      continue;
    values_[output] = values_[input];
    Lifetime& piece = pieces_[*values_[output]];
    piece.end = std::max(piece.end, last_read_[output]);
    return;
  }
  values_[output] = add(bytes(output), forward(node), last_read_[output]);
}

void ActivationPlan::place_input_gradients(std::size_t node) {
  for (std::size_t k = 0; k < input_gradients_[node].size(); ++k)
    input_gradients_[node][k] = place_input_gradient(node, k);
}

ActivationPlan::InputGradient ActivationPlan::place_input_gradient(std::size_t node, std::size_t input) {
  const auto& inputs = graph_.nodes()[node].inputs;
  const Value value = inputs[input], output = Graph::output(node);
  const Op& op = *ops_[node];
  if (!wanted_[value]) return {};
  Piece& gradient = gradients_[value];
  if (gradient) {  // another node has written it
    if (op.info().input(input).adds_to_gradient) return {gradient, true};
    const bool last = first_node_[value] == node && std::ranges::count(inputs, value) == 1;
    if (!last || !ops_[value - Graph::output(0)]->info().sums_output_gradients)
      return {add(bytes(value), backward(node), backward(node)), false, gradient};
    second_gradients_[value] = add(bytes(value), backward(node), backward_of(value));
    return {second_gradients_[value]};
  }
  const auto taken = [&](const InputGradient& other) { return other.piece == gradients_[output]; };
  if (op.info().input(input).gradient_may_overwrite && gradients_[output] && bytes(value) == bytes(output) &&
      std::ranges::none_of(input_gradients_[node], taken)) {
    gradient = gradients_[output];
    pieces_[*gradient].end = backward_of(value);
  } else {
    gradient = add(bytes(value), backward(node), backward_of(value));
  }
  return {gradient};
}

}  // namespace annulus
