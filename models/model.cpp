#include "models/model.h"

#include <algorithm>

#include "kernels/base/error.h"
#include "kernels/base/physical_memory.h"
#include "models/cost.h"
#include "models/fusion.h"
#include "models/unused_gradients.h"

namespace annulus {
namespace {

// The graph that devices plan.
Graph rewritten(const Graph& graph) {
  return prune_unused_gradients(fuse(graph));
}

}  // namespace

void expect_to_fit(const Device& device, const Graph& graph, Mode mode, std::size_t batch) {
  if (!device.info().shares_host_memory) return;
  double parameters = 0, largest = 0;
  for (const Cost& cost : node_costs(graph)) {
    parameters += static_cast<double>(cost.gradient_bytes());
    largest = std::max(largest, static_cast<double>(cost.activation_bytes));
  }
  const double needed = (mode == Mode::training ? 2 : 1) * parameters + static_cast<double>(batch) * largest;
  const auto memory = static_cast<double>(physical_memory());
  constexpr double kGiB = 1 << 30;
  if (needed > memory)
    fail("this network takes at least {:.1f} GiB of memory with a batch of {}, and this machine has {:.1f} GiB: {}",
         needed / kGiB, graph.samples_text(batch), memory / kGiB,
         graph.reads_tokens() ? "use a smaller --batch or --length"
                              : "use a smaller --batch, smaller images, or fewer classes");
}

std::size_t activation_arena_bytes(Device& device, const Graph& graph, Mode mode, std::size_t batch) {
  const Graph planned = rewritten(graph);
  return Network(device, planned, mode, batch, {}).activation_plan().bytes();
}

Model::Model(Device& device, const Graph& graph, Mode mode, std::size_t batch,
             const Parameters::Allocate& allocate_gradients, const Network::Planned& planned,
             const Parameters::Allocate& allocate_weights)
    : device_(device), graph_(rewritten(graph)), planned_(planned), memory_(device) {
  expect_to_fit(device, graph_, mode, batch);
  auto first = std::make_unique<Network>(device, graph_, mode, batch, layouts_, planned_);
  layouts_ = first->parameter_layouts();
  parameters_ = std::make_unique<Parameters>(device, graph_, layouts_, allocate_gradients, allocate_weights);
  first->bind(*parameters_, memory_);
  networks_[{mode, batch}] = std::move(first);
}

Network& Model::network(Mode mode, std::size_t batch) {
  auto& network = networks_[{mode, batch}];
  if (!network) {
    network = std::make_unique<Network>(device_, graph_, mode, batch, layouts_, planned_);
    network->bind(*parameters_, memory_);
    if (mode == Mode::training) {
      network->record_to(lane_);
      network->sum_over_ranks(sum_);
      network->stop_at(stops_);
    }
  }
  return *network;
}

const std::optional<Network::EmbeddingGradient>& Model::embedding_gradient() const {
  const auto trains = [](const auto& network) { return network.first.first == Mode::training; };
  return std::ranges::find_if(networks_, trains)->second->embedding_gradient();
}

void Model::stop_at(const Network::Stops& stops) {
  stops_ = stops;
  for (auto& [use, network] : networks_)
    if (use.first == Mode::training) network->stop_at(stops);
}

void Model::sum_over_ranks(const SumOverRanks& sum) {
  sum_ = sum;
  for (auto& [use, network] : networks_)
    if (use.first == Mode::training) network->sum_over_ranks(sum);
}

void Model::record_to(TraceLane* lane) {
  lane_ = lane;
  for (auto& [use, network] : networks_)
    if (use.first == Mode::training) network->record_to(lane);
}

}  // namespace annulus
