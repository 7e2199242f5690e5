#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "models/network/network.h"

namespace annulus {

// Throws Error if the network can never fit into the machine's memory; the lower bound is the parameters, their
// gradients, and a batch of the largest layer's output. So the error comes before planning starts, and before the
// system kills the process for lack of memory. `stage`: the nodes that are computed; all if empty.
void expect_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch,
                   const std::optional<Range>& stage = {});

// Returns the graph that a Model plans for this network: some operations are fused, or computed in part.
Graph planned_graph(const Graph& graph);

// Returns the size of the network's activation arena in bytes; parameters are not included. Plans every operation.
std::size_t activation_arena_bytes(Device& device, const Graph& graph, Mode mode, std::size_t batch);

// A network's parameters, and plans over them for every batch size and mode in which it is used (an epoch's last batch
// is smaller, evaluation has a separate batch size). In a pipeline, a single stage's parameters and plans.
class Model {
 public:
  // The parameters' layouts are chosen for this mode and batch size. `stage`: the stage's nodes in planned_graph(); all
  // if empty. `states`: arrays like the gradients that the caller allocates afterwards. The device must outlive the
  // model. Throws Error, before it allocates, if memory is too small for all that was planned.
  Model(
      Device& device, const Graph& graph, Mode mode, std::size_t batch,
      const Parameters::Allocate& allocate_gradients = {}, const Network::Planned& planned = [] {},
      const Parameters::Allocate& allocate_weights = {}, const std::optional<Range>& stage = {},
      std::size_t states = 0);

  Device& device() { return device_; }
  const Graph& graph() const { return graph_; }
  Parameters& parameters() const { return *parameters_; }
  std::size_t activation_bytes() const;  // in all networks' arenas

  // Plans the network on the first call for this mode and batch size. REQUIRES: that call is before the first step.
  // Networks in the same slot share activation memory: to run forward before an earlier batch's backward has run, use
  // another slot.
  Network& network(Mode mode, std::size_t batch, std::size_t slot = 0);

  // See Network. REQUIRES: a network for training has been planned.
  const std::optional<Network::EmbeddingGradient>& embedding_gradient() const;

  // These apply to the networks for training; see Network.
  void record_to(TraceLane* lane);
  void sum_over_ranks(const SumOverRanks& sum);
  void stop_at(const Network::Stops& stops);

  void link(const StageLinks& links);  // all networks; see Network

 private:
  Device& device_;
  const Graph graph_;
  const Network::Planned planned_;
  const std::optional<Range> stage_;
  const std::size_t states_;
  std::vector<std::vector<TensorSpec>> layouts_;
  std::unique_ptr<Parameters> parameters_;
  std::map<std::size_t, ActivationArena> memory_;                                            // by slot
  std::map<std::tuple<Mode, std::size_t, std::size_t>, std::unique_ptr<Network>> networks_;  // by mode, batch and slot
  TraceLane* lane_ = nullptr;
  SumOverRanks sum_;
  Network::Stops stops_;
  StageLinks links_;
};

}  // namespace annulus
