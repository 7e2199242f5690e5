#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/split.h"
#include "kernels/device.h"
#include "models/graph/graph.h"
#include "models/parameters/parameter_uses.h"

namespace annulus {

struct Parameter {
  std::string name;  // "conv1.weight"
  Role role;
  float initial, stddev, statistic_momentum;
  TensorSpec spec;
  std::size_t offset;  // of the slot in each arena, in bytes; frozen parameters have none in the gradients' arena
  std::size_t bytes;   // the slot's size: the tensor, padded with zeros to a multiple of the cache line size
  std::size_t number;  // in the whole network, in backward order; the same in any stage
  // Place of the second slot, if several nodes share the parameter: its gradients are added to the first slot's.
  std::optional<std::size_t> second_slot{};
  bool begins_as_copy = false;  // see ParameterDeclaration

  bool trained() const { return annulus::trained(role); }
};

// A network's parameters in a single arena, float32, and the gradients in another with the same layout. Both are in the
// order in which backward finishes the gradients, so gradients that become final together form a slice. Frozen
// parameters follow after all others; the gradients' arena ends before them. A parameter that several nodes share has
// the slot that the first node in forward, the last in backward, would have (last_in_backward()).
//
// The first slot holds the control flags: kControlFlags floats that the training loop all-reduces with the metrics.
class Parameters {
 public:
  static constexpr std::size_t kControlFlags = 6;

  // Allocates an arena: `bytes` of zeroed memory that outlives the Parameters. If not set, the device allocates it.
  using Allocate = std::function<DeviceView(std::size_t bytes)>;

  // `layouts`: for each node in the graph, the parameters' layouts. `stage`: the nodes whose parameters these are; all
  // if empty. A parameter shared by nodes on several stages belongs to each.
  Parameters(Device& device, const Graph& graph, const std::vector<std::vector<TensorSpec>>& layouts,
             const Allocate& allocate_gradients, const Allocate& allocate_weights,
             const std::optional<Range>& stage = {});

  const std::vector<Parameter>& all() const { return all_; }  // in backward order, frozen or not
  std::vector<Parameter> updated() const;                     // without the frozen ones, in arena order
  const Parameter& control_flags() const { return all_.front(); }
  // The loss's, the first node in backward; null in a stage without the loss.
  const Parameter* metrics() const { return all_.size() > 1 && all_[1].role == Role::metric ? &all_[1] : nullptr; }
  std::size_t count() const;         // trained values, padding not counted
  std::size_t count_frozen() const;  // frozen values

  DeviceView weights() const { return weights_; }
  DeviceView gradients() const { return gradients_; }
  // The weights in the device's value type, in an arena with the same order; empty if that type is float32.
  DeviceView copies() const { return copies_.view(); }
  DeviceView weight(const Parameter& p) const { return weights().slice(p.offset, p.bytes); }
  DeviceView copy(const Parameter& p) const {
    return copies() ? copies().slice(p.offset / kNarrower, p.bytes / kNarrower) : DeviceView{};
  }
  // REQUIRES: it is not frozen.
  DeviceView gradient(const Parameter& p) const { return gradients().slice(p.offset, p.bytes); }
  // Memory for a node's part of a shared parameter's gradient. REQUIRES: the parameter has a second slot.
  DeviceView second_gradient(const Parameter& p) const { return second_.view().slice(p.second_slot.value(), p.bytes); }

  // A node's parameters in declaration order, and the range of the node's gradients in the arena, in bytes.
  std::vector<const Parameter*> of_node(std::size_t node) const;
  Range gradients_of_node(std::size_t node) const { return node_gradients_[node]; }
  // Returns whether a node's parameter has the gradient in this node's range: it is neither frozen nor another node's.
  bool has_gradient(std::size_t node, const Parameter& p) const {
    const Range own = gradients_of_node(node);
    return p.role != Role::frozen && p.offset >= own.begin && p.offset < own.end;
  }

  // Sets initial values, which depend only on the seed and on each parameter's number.
  void initialize(std::uint64_t seed);

  // Swaps the weights that are not frozen with another arena's, which has the gradients' layout.
  void swap_weights(DeviceView other);

  // Updates the copies of all weights, or in a range in floats. Call after anything other than an Update has changed
  // weights.
  void weights_changed();
  void weights_changed(const Range& range);

 private:
  static constexpr std::size_t kNarrower = 2;  // a copy is 16 bits

  void add_all(const Graph& graph, const std::vector<std::vector<TensorSpec>>& layouts, const Range& nodes);
  void share(const Graph& graph, Parameter& parameter, const std::vector<ParameterUse>& uses);
  void place(Parameter& parameter);

  Device& device_;
  std::vector<Parameter> all_;
  std::vector<std::vector<std::size_t>> of_node_;  // indices into all_
  std::vector<Range> node_gradients_;
  std::size_t bytes_ = 0, second_bytes_ = 0;
  Buffer own_weights_, copies_, own_gradients_, second_;
  DeviceView weights_, gradients_;
};

}  // namespace annulus
