#pragma once

#include <map>
#include <memory>

#include "models/network.h"

namespace annulus {

// Throws Error if this can never fit into the machine's memory: the parameters, their gradients, and a batch of the
// largest layer's output. The network takes more than that. Planning need not be tried then, nor does the system have
// to end the process for want of memory.
void expect_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch);

// How much memory what flows through the network takes at once, parameters not counted. Plans every operation.
std::size_t flow_bytes(Device& device, const Graph& graph, Mode mode, std::size_t batch);

// A network's parameters, and the network planned for every batch size and mode in which it is used (an epoch's last
// batch is smaller, evaluation has its own), all over the same parameters.
class Model {
 public:
  // The parameters' layouts are chosen for this mode and batch size. The device must outlive the model.
  Model(
      Device& device, const Graph& graph, Mode mode, std::size_t batch,
      const Parameters::Allocate& allocate_gradients = {}, const Network::Planned& planned = [] {});

  Device& device() { return device_; }
  const Graph& graph() const { return graph_; }
  Parameters& parameters() const { return *parameters_; }

  // Planned the first time it is asked for; ask before the first step.
  Network& network(Mode mode, std::size_t batch);

  // Of training; see Network.
  void record_to(TraceLane* lane);
  void sum_over_ranks(const SumOverRanks& sum);
  void stop_at(const Network::Stops& stops);

 private:
  Device& device_;
  const Graph graph_;
  const Network::Planned planned_;
  std::vector<std::vector<TensorSpec>> layouts_;
  std::unique_ptr<Parameters> parameters_;
  ActivationArena memory_;
  std::map<std::pair<Mode, std::size_t>, std::unique_ptr<Network>> networks_;
  TraceLane* lane_ = nullptr;
  SumOverRanks sum_;
  Network::Stops stops_;
};

}  // namespace annulus
