#pragma once

#include <map>
#include <memory>

#include "models/network.h"

namespace annulus {

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
  void stop_at(const Network::Stops& stops);

 private:
  Device& device_;
  const Graph graph_;
  const Network::Planned planned_;
  std::vector<std::vector<TensorSpec>> layouts_;
  std::unique_ptr<Parameters> parameters_;
  std::map<std::pair<Mode, std::size_t>, std::unique_ptr<Network>> networks_;
  TraceLane* lane_ = nullptr;
  Network::Stops stops_;
};

}  // namespace annulus
