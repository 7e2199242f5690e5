#pragma once

#include <optional>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/device.h"
#include "models/graph/graph.h"
#include "models/memory/memory_plan.h"

namespace annulus {

// Plans the memory for a network's activations and their gradients by liveness analysis: all are placed in a single
// arena, in which memory is reused after the last read of the old content. A step's moments are the operations' forward
// passes and, in training, their backward passes, in execution order. That is graph order, except that a node that adds
// a gradient elsewhere (FusedPasses) directly follows the node whose output it reads, so that it is the last reader
// in backward. Recomputed nodes run forward again directly before the first backward pass that needs them. A fused
// forward pass is part of the pass before it (FusedPasses::next_forward). An output that the next pass computes has no
// memory.
//
// The images and the labels come from outside and are not in the arena. Nor is a stage's input, but the input's
// gradient is, until backward ends.
class ActivationPlan {
 public:
  using Piece = std::optional<std::size_t>;  // in the arena; none if there is nothing to store

  // Where a node writes an input's gradient. If several nodes read a value, the first to run in backward writes the
  // gradient, and later nodes add to it. A node that cannot add while it computes writes to a separate piece, which is
  // added afterwards or by the node that made the value. The last node may also write the sum to a separate piece
  // (FusedPasses::adds_elsewhere). If both inputs' gradients equal the output's (a residual addition), all three share
  // a piece, if the first input's has been read when a node adds to the second's.
  struct InputGradient {
    Piece piece;              // none if the gradient is not needed
    bool accumulate = false;  // the node adds while it computes
    Piece added_to = {};      // the piece that it is added to afterwards
    Piece others = {};        // see NeighbourBindings::gradient_of_others
  };

  // Plans for all nodes, or for a stage, a range of nodes (models/network/stages.h). `ops` has an element for each node
  // in the graph, null outside the range; `specs` for each value that is computed by the range's end. Throws Error if
  // training needs a gradient that no node computes.
  ActivationPlan(const Graph& graph, const Range& nodes, std::vector<const Op*> ops, std::vector<TensorSpec> specs,
                 Mode mode);

  const std::vector<std::size_t>& order() const { return order_; }  // forward's node order; backward reverses it
  Piece value(Value value) const { return values_[value]; }
  Piece gradient(Value value) const { return gradients_[value]; }
  // NeighbourBindings::second_output_gradient.
  Piece second_gradient(Value value) const { return second_gradients_[value]; }
  const std::vector<InputGradient>& input_gradients(std::size_t node) const { return input_gradients_[node]; }
  Piece scratch() const { return scratch_; }
  // The nodes that run forward again before this node's backward pass, in order.
  const std::vector<std::size_t>& recomputed_before(std::size_t node) const { return recomputed_before_[node]; }

  DeviceView view(const Piece& piece, DeviceView arena) const;  // empty if there is no piece
  std::size_t bytes() const { return plan_.bytes; }
  std::size_t bytes_without_reuse() const;  // if every piece had separate memory
  std::size_t kept_bytes() const;           // in pieces that are kept from forward until backward

 private:
  // Moments.
  std::size_t forward(std::size_t node) const { return forward_[node]; }
  std::size_t backward(std::size_t node) const { return backward_[node]; }
  std::size_t backward_of(Value value) const { return is_computed(value) ? backward(node_of(value)) : end_; }
  static std::size_t node_of(Value value) { return value - Graph::output(0); }
  bool is_computed(Value value) const { return value >= Graph::output(nodes_.begin); }  // rather than from outside

  bool runs_backward(std::size_t node) const;
  void expect_readers() const;
  void find_order();
  void find_recomputed();
  void set_moments();
  void find_reads();
  void place_output(std::size_t node);
  bool may_overwrite(std::size_t node, std::size_t input) const;
  void place_last_gradient();
  bool may_share_gradient(std::size_t node, std::size_t input) const;
  bool is_read_before(Value first, Value second, std::size_t node) const;
  InputGradient place_input_gradient(std::size_t node, std::size_t input);
  Piece add(const Lifetime& piece);
  std::size_t bytes(Value value) const { return specs_[value].layout->bytes(); }

  const Graph& graph_;
  const Range nodes_;
  std::vector<const Op*> ops_;
  std::vector<TensorSpec> specs_;
  bool training_;
  std::vector<bool> wanted_;  // for each value, whether the gradient is needed
  std::vector<std::vector<std::size_t>> recomputed_before_;
  std::vector<std::size_t> order_;
  std::vector<std::size_t> forward_, backward_;         // moments
  std::size_t end_ = 0;                                 // the moment after the last
  std::vector<LiveRange> ranges_;                       // for each value
  std::vector<std::optional<LiveRange>> ranges_again_;  // for each recomputed value: from then on
  std::vector<std::size_t> first_node_;                 // a value's first reader, so the last to write the gradient

  std::vector<Piece> values_, gradients_, second_gradients_;
  std::vector<std::vector<InputGradient>> input_gradients_;
  Piece scratch_;
  std::vector<Lifetime> pieces_;
  MemoryPlan plan_;
};

}  // namespace annulus
