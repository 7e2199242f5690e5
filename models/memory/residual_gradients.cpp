#include <algorithm>

#include "models/memory/activation_plan.h"

// When both inputs' gradients in a residual addition share memory with the output's, so that none is copied.
namespace annulus {

// Returns whether this input's gradient may have the memory that the other input's gradient shares with the output's.
// REQUIRES: no node has written this input's gradient yet.
bool ActivationPlan::may_share_gradient(std::size_t node, std::size_t input) const {
  const auto& inputs = graph_.nodes()[node].inputs;
  const Piece& shared = gradients_[Graph::output(node)];
  if (inputs.size() != 2 || inputs[0] == inputs[1] || !shared) return false;
  const Value other = inputs[1 - input], value = inputs[input];
  const OpInfo& info = ops_[node]->info();
  if (!info.input(0).gradient_is_outputs || !info.input(1).gradient_is_outputs) return false;
  if (input_gradients_[node][1 - input].piece != shared || bytes(value) != bytes(Graph::output(node))) return false;
  return is_read_before(other, value, node) || is_read_before(value, other, node);
}

// Returns whether `first`'s gradient, which only this node writes, has been read when anything changes `second`'s.
bool ActivationPlan::is_read_before(Value first, Value second, std::size_t node) const {
  if (!is_computed(first) || !is_computed(second) || node_of(first) < nodes_.begin) return false;
  const Op& producer = *ops_[node_of(first)];
  const auto overwrites = [](const InputUse& use) { return use.gradient_may_overwrite; };
  if (!producer.info().keeps_output_gradient || producer.info().inputs.empty() ||
      std::ranges::any_of(producer.info().inputs, overwrites))
    return false;
  const std::size_t read = backward_of(first);
  if (backward_of(second) < read) return false;
  for (const std::size_t i : order_) {
    if (i == node) continue;
    const auto& inputs = graph_.nodes()[i].inputs;
    if (std::ranges::count(inputs, first) > 0) return false;
    if (std::ranges::count(inputs, second) > 0 && backward(i) <= read) return false;
  }
  return true;
}

}  // namespace annulus
