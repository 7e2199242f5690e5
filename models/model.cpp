#include "models/model.h"

#include "models/fusion.h"

namespace annulus {

Model::Model(Device& device, const Graph& graph, Mode mode, std::size_t batch,
             const Parameters::Allocate& allocate_gradients)
    : device_(device), graph_(fuse(graph)) {
  auto first = std::make_unique<Network>(device, graph_, mode, batch, layouts_);
  layouts_ = first->parameter_layouts();
  parameters_ = std::make_unique<Parameters>(device, graph_, layouts_, allocate_gradients);
  first->bind(*parameters_);
  networks_[{mode, batch}] = std::move(first);
}

Network& Model::network(Mode mode, std::size_t batch) {
  auto& network = networks_[{mode, batch}];
  if (!network) {
    network = std::make_unique<Network>(device_, graph_, mode, batch, layouts_);
    network->bind(*parameters_);
    if (mode == Mode::training) network->record_to(lane_);
  }
  return *network;
}

void Model::record_to(TraceLane* lane) {
  lane_ = lane;
  for (auto& [use, network] : networks_)
    if (use.first == Mode::training) network->record_to(lane);
}

}  // namespace annulus
